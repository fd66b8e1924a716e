"""The edge of explain: what is known of a run, from its directory; or of a log that somebody kept."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import ConfigError
from toolkit.explain.matcher import entries_of, pasted
from toolkit.explain.model import Evidence
from toolkit.model.plan import Plan
from toolkit.model.run import Outcome
from toolkit.runs import follow, logs, status
from toolkit.runs.store import Paths
from toolkit.ways import requeue

_MOST_BYTES = 200_000_000  # of one log; what is beyond is no help to anybody


def of_run(paths: Paths) -> tuple[Evidence, Outcome | None]:
    """What a run's directory holds, and how it came out; None: it has not ended, as far as is known.

    Raises:
        SlurmUnreachableError: it was never submitted.
    """
    submission = status.submission_of(paths)
    plan = follow.read_plan(paths)
    printed = follow.all_lines(paths, plan, submission.job_id)
    lines = [line for line in (requeue.last(printed) if plan.requeue else printed) if not logs.is_noise(line.text)]
    entries = entries_of((line.text, line.host, line.rank) for line in lines)
    outcome = paths.read_outcome()
    if outcome is None:
        return Evidence(entries, launcher=plan.launch.launcher, forced=_forced(plan)), None
    failure = outcome.failure
    return (
        Evidence(
            entries=entries,
            state=outcome.state,
            exit_code=outcome.exit_code,
            launcher=plan.launch.launcher,
            nodes_down=outcome.unwell,
            first_rank=failure.rank if failure else None,
            first_host=(failure.host or "") if failure else "",
            first_text=failure.text if failure else "",
            forced=_forced(plan),
        ),
        outcome,
    )


def _forced(plan: Plan) -> tuple[str, ...]:
    return (*plan.forced.findings, f"because: {plan.forced.reason}") if plan.forced else ()


def of_file(path: Path) -> Evidence:
    """A log file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"the log cannot be read: {error.strerror}", place=str(path), next_step="toolkit explain RUN|LOGFILE") from None
    return Evidence(pasted(text))


def of_capture(path: Path) -> Evidence:
    """Evidence that was kept as JSON: the fields of ``Evidence``, and ``lines`` as text, host and rank."""
    import json

    data = json.loads(path.read_text(encoding="utf-8"))
    lines = data.pop("lines")
    return Evidence(entries=entries_of((text, host, rank) for text, host, rank in lines), **data)
