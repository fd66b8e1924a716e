"""The command `toolkit explain`: the cause of a failed run, or of a log, and the fix."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli import console
from toolkit.cli.follow import lines_of, show_attempts
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import complete_runs, json_option, runs_option
from toolkit.errors import SlurmUnreachableError

if TYPE_CHECKING:
    from toolkit.explain.model import Evidence
    from toolkit.model.run import Outcome
    from toolkit.runs.store import Paths


@click.command("explain")
@click.argument("what", required=False, metavar="[RUN|LOGFILE]", shell_complete=complete_runs)
@json_option
@click.option("--rules", "list_rules", is_flag=True, help="List the rules, and stop.")
@runs_option
@cluster_option()
def command(what: str | None, as_json: bool, list_rules: bool, runs: Path) -> None:
    """Explain why a run failed or waits, and what to do.

    RUN is a run's name, directory or job id (default: the newest run). LOGFILE is any log file, and
    "-" is standard input; for these no cluster is queried.

    \b
    Examples:
      toolkit explain
      toolkit explain train-0007
      toolkit explain slurm-4711.out
      toolkit explain - < pasted.log
    """
    from toolkit.explain.explanation import explain
    from toolkit.explain.gather import rules

    known = rules()
    if list_rules:
        console.out(
            console.table(
                ("RULE", "CAUSE", "SOURCE"),
                [(name, rule.summary, rule.source) for name, rule in known.items()],
            )
        )
        return
    evidence, outcome, paths = _evidence(what, runs)
    if paths is not None and outcome is None and _shows_wait(paths, as_json):
        return
    if outcome is not None and outcome.kind == "ok":
        console.note("this run succeeded; there is nothing to explain")
        show_attempts(outcome.attempts)
        return
    explanation = explain(evidence, known)
    if as_json:
        import msgspec

        console.out_json(
            msgspec.to_builtins(explanation)
            | ({"forced": list(evidence.forced)} if evidence.forced else {})
        )
    else:
        lines = lines_of(explanation)
        if paths is not None and outcome is None:
            lines.append(console.subject("", "the run has not ended"))
            lines += _silent(paths)
        console.out("\n".join(lines))
        for number, text in enumerate(evidence.forced):
            console.fact("" if number else "forced", text)
        if outcome is not None:
            show_attempts(outcome.attempts)


def _silent(paths: Paths) -> list[str]:
    """Return what to type if a running run of Python has printed nothing for a while."""
    from toolkit.cli.follow import silent_text
    from toolkit.runs import follow, logs, standings, status

    seconds = logs.silence(paths, status.submission_of(paths).job_id)
    is_silent = seconds > follow.SILENT_SECONDS and standings.can_answer(paths.read_plan())
    return [console.subject("silent", silent_text(paths, seconds))] if is_silent else []


def _shows_wait(paths: Paths, as_json: bool) -> bool:
    """Print why a run waits in the queue, and return whether it does."""
    from toolkit.explain import gather, waiting
    from toolkit.runs import status

    try:
        state, _ = status.current(paths)
        if state is None or state.state != "PENDING":
            return False
        submission = status.submission_of(paths)
        facts = gather.of_waiting(status.client_of(submission), submission)
        lines = waiting.explain(facts, paths.name)
    except SlurmUnreachableError:
        return False
    if as_json:
        console.out_json(
            {
                "state": "PENDING",
                "reason": state.reason,
                "lines": [line._asdict() for line in lines],
            }
        )
    else:
        console.out("\n".join(console.subject(*line) for line in lines))
        console.say("docs", "toolkit docs run/pending")
    return True


def _is_piped() -> bool:
    """Return whether standard input is a file or a pipe, which may be a log."""
    import stat
    import sys

    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # it is closed
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _evidence(what: str | None, runs: Path) -> tuple[Evidence, Outcome | None, Paths | None]:
    from toolkit.explain.gather import of_file, of_run, of_stream
    from toolkit.runs.store import find

    if what == "-":
        import sys

        return of_stream(sys.stdin.buffer), None, None
    if what is not None and Path(what).is_file():
        return of_file(Path(what)), None, None
    if what is None and _is_piped():
        console.note("standard input was not read; a log there: toolkit explain -")
    paths, derived = find(what, runs), None
    if not paths.outcome.is_file():
        from toolkit.runs import status

        _, derived = status.current(paths)  # that of a run that ended unobserved
    return (*of_run(paths, derived), paths)
