"""Render job scripts: the only place that knows ``#SBATCH``.

It is pure: the same plan gives the same bytes. A script is the directives, variables, the shell
function ``task``, which says what each task does, and the line that starts the tasks. Templates
have loops and values; what they need of a plan is decided here. The template of a launcher extends
``job.sbatch.j2``, and the macros of ``runtimes/<name>.j2`` write how a task enters what it runs in.
Every value goes through a function of ``toolkit.quoting``; a test finds one that does not.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolkit import quoting
from toolkit.config import make_templates, package_directory
from toolkit.model.run import Container, Launch, Plan

if TYPE_CHECKING:
    from pathlib import Path

    from jinja2 import BytecodeCache, Environment

_WIDTH = 140
# The job as Slurm's commands name it: an element of an array has the number of the array as its id.
_ELEMENT = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
# Of the names of logs: each attempt of a job that goes back into the queue has logs of its own.
_ATTEMPT = "${SLURM_RESTART_COUNT:+.$SLURM_RESTART_COUNT}"


def script(plan: Plan) -> str:
    """Return the sbatch script of a plan; the first call imports Jinja2.

    Raises:
        UsageError: a value cannot be carried by a script: a newline in a comment, a NUL.
    """
    templates, container, launch = _templates(), plan.container, plan.launch
    options, steps = list(_step_options(plan)), list(_first_steps(plan))
    inner_shell = quoting.shell("; ".join((*steps, 'exec "$@"')))
    reasons = "; ".join(f"{option.partition('=')[0]}: {reason}" for option, reason in options)
    known = {
        "plan": plan,
        "container": container,
        "launch": launch,
        "parts": _parts(plan),
        "directives": [] if plan.interactive else _directives(plan),
        "salloc": quoting.comment(" ".join(_options(plan, quoting.shell))),
        "home": _home(container),
        "staged": quoting.shell_with_variables(container.staged),
        "first_steps": steps,
        # A shell in the container that takes the steps before the program.
        "inner_shell": f'sh -c {inner_shell} "$run/report" ' if steps else "",
        "point": "point " if plan.points else "",
        "step": " ".join(option for option, _ in options),
        "reasons": textwrap.wrap(reasons, _WIDTH - 2, break_on_hyphens=False),
        "command": _command(plan),
        "ending": "requeue.j2" if plan.requeue else "watched.j2" if plan.notify else "launch.j2",
        "job": _ELEMENT if plan.array else "$SLURM_JOB_ID",
        "attempt": _ATTEMPT if plan.requeue else "",
    }
    runtime = templates.get_template(f"runtimes/{container.runtime}.j2").make_module(known)
    names = (launch.template, f"{launch.launcher}-{launch.init}", launch.launcher, "job")
    template = templates.select_template([f"{name}.sbatch.j2" for name in names if name])
    return template.render(runtime=runtime, **known)


def session(plan: Plan) -> str:
    """Return the script of a session of ssh on a node, which enters what the ranks run in."""
    launch = replace(plan.launch, template="session")
    return script(replace(plan, launch=launch, reports=False, requeue=None))


@lru_cache(maxsize=1)
def _templates() -> Environment:
    directory = "scripts/templates"
    compiled = _compiled(package_directory(directory) / "__pycache__")
    # Not HTML: the filters below are what quotes here.
    environment = make_templates(directory, autoescape=False, bytecode_cache=compiled)
    environment.filters |= {
        "shell": quoting.shell,
        "words": quoting.shell_words,
        "comment": quoting.comment,
        "exports": _exports,
        "program": _program,
    }
    return environment


def _compiled(directory: Path) -> BytecodeCache | None:
    """Return a cache of compiled templates beside them, where Python itself keeps byte code.

    It saves a twelfth of a dry run. In a package that cannot be written to, there is none.
    """
    from jinja2 import FileSystemBytecodeCache
    from jinja2.bccache import Bucket

    class Cache(FileSystemBytecodeCache):
        def dump_bytecode(self, bucket: Bucket) -> None:
            with suppress(OSError):
                directory.mkdir(exist_ok=True)
                super().dump_bytecode(bucket)

    return None if sys.dont_write_bytecode else Cache(str(directory))


def _parts(plan: Plan) -> dict[str, list[str]]:
    """Return the lines that only some jobs have: place in the script -> macros of ``parts.j2``."""
    places: dict[str, dict[str, object]] = {
        "head": {"submitted": not plan.interactive, "allocated": plan.interactive},
        "first": {"own_python": plan.container.inherits, "modules": plan.modules},
        "start": {"unchanged": plan.script_file, "notify": plan.notify},
        "task": {"gpus": plan.gpus_per_node, "secrets": plan.secrets},
        "launch": {
            "number": plan.interactive,
            "log": plan.interactive and not plan.pty,
            "points": plan.points,
        },
    }
    return {
        place: [name for name, is_used in names.items() if is_used]
        for place, names in places.items()
    }


def _options(plan: Plan, quote: Callable[[object], str]) -> list[str]:
    rows = ((f"--{quoting.sbatch_option(name)}", value) for name, value in plan.sbatch_options)
    return [option if value is None else f"{option}={quote(value)}" for option, value in rows]


def _directives(plan: Plan) -> list[str]:
    logs = quoting.sbatch_path(f"{plan.run_directory}/logs/")
    # The log goes on where a job does that Slurm has put back into its queue.
    again = () if "no-requeue" in dict(plan.directives) else ("--open-mode=append",)
    return [*_options(plan, quoting.sbatch), f"--output={logs}{plan.job_pattern}.log", *again]


def _home(container: Container) -> str:
    if container.home:
        return quoting.shell_with_variables(container.home)
    return f'"${{SCRATCH:-$HOME/.cache}}"/toolkit/home/{quoting.shell(container.home_name)}'


def _first_steps(plan: Plan) -> Iterator[str]:
    """Yield what the shell does in which the program starts, after all that stands between.

    A container's own variables count there, and what enters it has passed on no signal yet.
    """
    if plan.reports and plan.container.inherits:
        report = quoting.shell(f"{plan.run_directory}/report")
        yield f'export PYTHONPATH={report}"${{PYTHONPATH:+:$PYTHONPATH}}"'
    elif plan.reports:
        yield 'export PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}"'
    if plan.requeue and plan.requeue.signal:
        yield f'trap "" {plan.requeue.signal}'


def _step_options(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the options of srun, each with its reason."""
    launch = plan.launch
    yield "--export=ALL", "this shell's variables, whatever sbatch was given"
    yield "--kill-on-bad-exit=1", "a task that fails ends the job"
    yield "--wait=0", "one that ends early does not"
    if launch.cpus_per_task:
        yield f"--cpus-per-task={launch.cpus_per_task}", "steps do not inherit it in every Slurm"
    if launch.mpi:
        yield f"--mpi={quoting.shell(launch.mpi)}", "who each rank is"
    if plan.pty and plan.interactive:
        yield "--pty", "this terminal, for the first task"
    else:
        log = f"{plan.job_pattern}{_ATTEMPT if plan.requeue else ''}-%t-%N.log"
        yield (
            f'--output="${{run//%/%%}}/logs/{log}" --open-mode=append',
            "a log for each task, which nothing overwrites",
        )


def _command(plan: Plan) -> str:
    """Return what srun starts; a terminal for each task, since some programs look for one."""
    if not plan.pty or plan.interactive:
        return "bash -c task"
    return (
        "env SHELL=/bin/bash script --quiet --return --flush --command "
        "'stty rows 40 cols 120; task' /dev/null"
    )


def _exports(values: Mapping[str, str], prefix: str = "") -> list[str]:
    lines: list[str] = []
    for name, value in sorted(values.items()):
        word = f"{prefix}{name}={quoting.shell(value)}"
        if lines and len(lines[-1]) + len(word) < _WIDTH - 5:
            lines[-1] += f" {word}"
        else:
            lines.append(f"export {word}")
    return lines


def _program(launch: Launch) -> str:
    """Return the words of the program; those that the launcher has filled in are expanded."""
    return " ".join(
        quoting.shell_with_variables(word) if number in launch.filled else quoting.shell(word)
        for number, word in enumerate(launch.program)
    )
