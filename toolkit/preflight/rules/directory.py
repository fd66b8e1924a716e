"""Where a site takes jobs from, and where run directories can be made."""

from __future__ import annotations

from toolkit.errors import BindMissingError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    seen, found = case.seen, []
    if seen.submit_from:
        cause = f"site {case.site.name} takes jobs from {seen.submit_from} only"
        found.append(
            Finding(
                BindMissingError(cause, place="directory", next_step=f"cd {seen.submit_from}"),
                case.source,
            )
        )
    if not seen.writable:
        cause = f"{seen.directory} cannot be written to, and the run's directory goes there"
        found.append(
            Finding(
                BindMissingError(
                    cause, place="directory", next_step="change to a directory of yours"
                ),
                "looked here",
            )
        )
    return found
