"""Files that the site deletes because nobody reads them: gone, or soon gone, while the job waits or runs."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolkit.errors import BindMissingError
from toolkit.preflight.model import Case, Finding

_DAY = 1440  # minutes
_QUEUE = 1.0  # days that a job may wait, where nobody knows
CONDEMNED = "ToBeDelete_"  # what such files are called at Neuron before they go


def look(case: Case) -> list[Finding]:
    keeps = case.site.purge_days
    if keeps is None:
        return []
    needed = (
        case.minutes if case.minutes is not None else case.site.max_minutes or _DAY
    ) / _DAY + _QUEUE
    found = []
    for option, path, days in case.seen.unread:
        if PurePosixPath(path).name.startswith(CONDEMNED):
            error = BindMissingError(
                f"{path} is about to be deleted",
                place=option,
                next_step="rename it, and keep a copy elsewhere",
            )
            found.append(Finding(error, case.source))
        elif keeps - days < needed:
            cause = f"{path} was not read for {days:.0f} days; after {keeps} the site deletes it, maybe before this job ends"
            found.append(
                Finding(
                    BindMissingError(cause, place=option, next_step=f"touch {path}"),
                    case.source,
                    stops=False,
                )
            )
    return found
