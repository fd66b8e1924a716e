"""The renderer of job scripts: the only place that knows ``#SBATCH``.

It is pure: the same plan gives the same bytes. Templates have loops and values, no decisions; the
one of a launcher extends ``job.sbatch.j2``, and the macros of ``runtimes/<name>.j2`` write what the
ranks run inside. The two quotings are the filters ``shell``, ``words``, ``expanding`` and
``sbatch``, ``option``, ``path``; a test finds a value without one of them.
"""

from __future__ import annotations

from functools import lru_cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from toolkit import quoting
from toolkit.config import package_directory
from toolkit.model.plan import Plan
from toolkit.scripts.compiled import cache


@lru_cache(maxsize=1)
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(package_directory("scripts") / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=cache(),
        autoescape=False,  # not HTML: the filters below are what quotes here
    )
    environment.filters |= {
        "shell": quoting.shell,
        "words": quoting.shell_words,
        "expanding": quoting.shell_with_variables,
        "sbatch": quoting.sbatch,
        "option": quoting.sbatch_option,
        "path": quoting.sbatch_path,
        "comment": quoting.comment,
    }
    return environment


def script(plan: Plan) -> str:
    """Return the sbatch script of a plan.

    Raises:
        UsageError: a value cannot be carried by a script: a newline in a comment, a NUL.
    """
    known = {"plan": plan, "container": plan.container, "launch": plan.launch}
    runtime = _templates().get_template(f"runtimes/{plan.container.runtime}.j2").make_module(known)
    template = _templates().get_template(
        f"{plan.launch.template or plan.launch.launcher}.sbatch.j2"
    )
    return template.render(runtime=runtime, **known)
