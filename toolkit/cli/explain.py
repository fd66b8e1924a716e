"""`toolkit explain`: from a failed run, or a log, to the cause and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.options import complete_runs

if TYPE_CHECKING:
    from toolkit.explain.model import Evidence, Explanation
    from toolkit.model.run import Outcome
    from toolkit.records.store import Paths


@click.command("explain")
@click.argument("what", required=False, metavar="[RUN|LOGFILE]", shell_complete=complete_runs)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--rules", "list_rules", is_flag=True, help="List what it knows, and stop.")
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Directory of the runs.",
)
def command(what: str | None, as_json: bool, list_rules: bool, runs: Path) -> None:
    """Say what happened first in a failed run, why, and what to do about it; or why a run waits.

    RUN is a run's name, directory or job id (default: the newest run); LOGFILE is any log, "-" is standard input: nothing is asked of
    a cluster for it.

    \b
    Examples:
      toolkit explain
      toolkit explain train-0007
      toolkit explain slurm-4711.out
      toolkit explain - < pasted.log
    """
    from toolkit.explain.matcher import explain
    from toolkit.explain.rulebook import rules

    known = rules()
    if list_rules:
        from toolkit.cli import console

        console.out(
            console.table(
                ("RULE", "KNOWS", "SOURCE"),
                [(name, rule.summary, rule.source) for name, rule in known.items()],
            )
        )
        return
    evidence, outcome, paths = _evidence(what, runs)
    if paths is not None and outcome is None and _shows_wait(paths, as_json):
        return
    if outcome is not None and outcome.kind == "ok":
        from toolkit.cli import console
        from toolkit.cli.follow import show_attempts

        console.note("this run ended well; there is nothing to explain")
        show_attempts(outcome.stints)
        return
    found = explain(evidence, known)
    if as_json:
        import msgspec

        from toolkit.cli import console

        console.out_json(
            msgspec.to_builtins(found)
            | ({"forced": list(evidence.forced)} if evidence.forced else {})
        )
    else:
        from toolkit.cli import console

        lines = lines_of(found)
        if paths is not None and outcome is None:
            lines.append(console.subject("", "the run has not ended"))
        console.out("\n".join(lines))
        for number, text in enumerate(evidence.forced):
            console.out(console.subject("" if number else "forced", text))
        if outcome is not None:
            from toolkit.cli.follow import show_attempts

            show_attempts(outcome.stints)


def _shows_wait(paths: Paths, as_json: bool) -> bool:
    """Say why a run waits in the queue; return whether it does."""
    from toolkit.cli import console
    from toolkit.errors import SlurmUnreachableError
    from toolkit.explain import waiting, waiting_facts
    from toolkit.runs import status

    try:
        state, _ = status.current(paths)
        if state is None or state.state != "PENDING":
            return False
        client = status.client_of(status.submission_of(paths))
        lines = waiting.explain(waiting_facts.gather(client, state.job_id), paths.name)
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
    return True


def _evidence(what: str | None, runs: Path) -> tuple[Evidence, Outcome | None, Paths | None]:
    from toolkit.explain.gather import of_file, of_run, of_stream
    from toolkit.records.store import find

    if what == "-":
        import sys

        return of_stream(sys.stdin.buffer), None, None
    if what is not None and Path(what).is_file():
        return of_file(Path(what)), None, None
    paths = find(what, runs)
    if not paths.outcome.is_file():
        from toolkit.runs import status

        status.current(paths)  # a run that nobody watched to its end: works out how it came out
    return (*of_run(paths), paths)


def lines_of(found: Explanation) -> list[str]:
    """An explanation for people: what happened first, the cause, the fix, how sure, what was looked at."""
    from toolkit.cli.console import subject
    from toolkit.explain.matcher import NO_FAILURE

    lines = [subject("first", found.first)]
    if found.first == NO_FAILURE:
        lines = [subject("result", found.first)]
    elif found.match is None:
        lines.append(
            subject(
                "cause",
                "not known: none of the rules fits. The earliest lines that look like errors:",
            )
        )
        lines += [subject("", line) for line in found.suspicious] or [subject("", "there are none")]
        if found.every_line:
            lines.append(subject("next", f"{found.every_line} shows everything"))
    else:
        match = found.match
        lines += [subject("code", found.source)] if found.source else []
        lines.append(subject("cause", match.cause))
        if match.line and match.line not in found.first and match.line not in match.cause:
            lines.append(
                subject(
                    "line",
                    f"{match.rank if match.rank is not None else match.host or 'batch'}| {match.line}",
                )
            )
        lines += [subject("last", found.last)] if found.last else []
        if len(match.ranks) > 1:
            lines.append(
                subject("ranks", f"{len(match.ranks)} printed the like: {_some(match.ranks)}")
            )
        lines += [
            subject("fix" if number == 0 else "or", text) for number, text in enumerate(match.fix)
        ]
        lines.append(subject("confidence", f"{match.sure} (rule {match.rule}; {match.source})"))
        lines += [
            subject("or else", f"{other.summary} ({other.rule}: {other.line})")
            for other in found.others
        ]
        if found.suspicious:
            lines.append(subject("lines", "the earliest that look like errors:"))
            lines += [subject("", line) for line in found.suspicious]
    lines.append(subject("searched", "; ".join(found.looked_at)))
    return lines


def _some(ranks: tuple[int, ...], most: int = 8) -> str:
    shown = ", ".join(map(str, ranks[:most]))
    return f"{shown}, ..." if len(ranks) > most else shown
