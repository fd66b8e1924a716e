"""What the nodes do not see, because each has a directory of its own in that place."""

from __future__ import annotations

from toolkit.errors import BindMissingError
from toolkit.preflight.model import Case, Finding


def look(case: Case) -> list[Finding]:
    return [
        Finding(
            BindMissingError(
                f"{path} cannot be seen by the nodes: each has a {owner} of its own",
                place=option,
                next_step="use a directory that all nodes share, such as your home",
            ),
            case.source,
        )
        for option, (path, owner) in case.seen.hidden.items()
    ]
