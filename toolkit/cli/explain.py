"""The command `toolkit explain`: the cause of a failed run, or of a log, and the fix."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import click
import msgspec

from toolkit.cli import console
from toolkit.cli.follow import lines_of, show_attempts
from toolkit.cli.lazy import cluster_option
from toolkit.cli.shared import complete_runs, json_option, runs_option
from toolkit.explain import waiting
from toolkit.explain.explanation import explain
from toolkit.explain.gather import of_file, of_run, of_stream, rules
from toolkit.explain.match import Evidence
from toolkit.model.run import JobState
from toolkit.runs import follow, status
from toolkit.runs.directories import find
from toolkit.runs.run import Run


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
    known = rules()
    if list_rules:
        console.out(
            console.table(
                ("RULE", "CAUSE", "SOURCE"),
                [(name, rule.summary, rule.source) for name, rule in known.items()],
            )
        )
        return
    evidence, run, state = _evidence(what, runs)
    if run is not None and state is not None and state.state == "PENDING":
        _show_wait(run, state, as_json=as_json)
        return
    outcome = run.outcome if run is not None else None
    if outcome is not None and outcome.kind == "ok":
        console.note("this run succeeded; there is nothing to explain")
        show_attempts(outcome.attempts)
        return
    explanation, forced = explain(evidence, known), run.plan.forced if run is not None else None
    overruled = [*forced.findings, f"because: {forced.reason}"] if forced else []
    if as_json:
        by_force = {"forced": overruled} if overruled else {}
        console.out_json(msgspec.to_builtins(explanation) | by_force)
        return
    lines = lines_of(explanation)
    if run is not None and outcome is None:
        silence = follow.silence_text(run)
        lines.append(console.subject("", "the run has not ended"))
        lines += [console.subject("silent", silence)] if silence else []
    console.out("\n".join(lines))
    for number, text in enumerate(overruled):
        console.fact("" if number else "forced", text)
    if outcome is not None:
        show_attempts(outcome.attempts)


def _show_wait(run: Run, state: JobState, *, as_json: bool) -> None:
    """Print why a run waits in the queue."""
    rows = waiting.explain(run)
    if as_json:
        lines = [{"subject": subject, "text": text} for subject, text in rows]
        console.out_json({"state": "PENDING", "reason": state.reason, "lines": lines})
    else:
        console.out("\n".join(console.subject(*row) for row in rows))
        console.say("docs", "toolkit docs run/pending")


def _is_piped() -> bool:
    """Return whether standard input is a file or a pipe, which may be a log."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # it is closed
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _evidence(what: str | None, runs: Path) -> tuple[Evidence, Run | None, JobState | None]:
    """Return the evidence; if it is of a run, also that, and its state in Slurm."""
    if what == "-":
        return of_stream(sys.stdin.buffer), None, None
    if what is not None and Path(what).is_file():
        return of_file(Path(what)), None, None
    if what is None and _is_piped():
        console.note("standard input was not read; a log there: toolkit explain -")

    run = find(what, runs)
    state = status.query(run)
    return of_run(run), run, state
