"""The plan of a run that is repeated: the recorded one, for another directory. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from toolkit.model.base import convert
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.planning.settings import Settings

# What the site's file, the image and the machine decide without a setting.
_FROM_OUTSIDE = ("container", "environment", "launch", "modules", "ports")


def as_recorded(recorded: Plan, fresh: Plan) -> Plan:
    """Return the recorded plan of a run, for the directory of its repetition.

    Args:
        recorded: the plan of the run.
        fresh: a plan of the same settings, made now. It is only compared; the warnings, the hash of
            the script and the absence of dependencies on other runs come from it.
    """
    data = _moved(msgspec.to_builtins(recorded), recorded.run_directory, fresh.run_directory)
    again = convert(data, Plan)
    # How a variable gets to the ranks is the template's business, which is that of today.
    container = replace(again.container, prefix=fresh.container.prefix)
    again = replace(again, container=container)
    now = dict(fresh.directives)
    after = ("dependency", "kill-on-invalid-dep")
    # Why the launcher was chosen is no difference: now it is a recorded setting.
    alike = replace(fresh, launch=replace(fresh.launch, reason=again.launch.reason))
    changed = [name for name in _FROM_OUTSIDE if getattr(again, name) != getattr(alike, name)]
    notes = (
        (f"the site, the image or the toolkit has changed; as recorded: {', '.join(changed)}",)
        if changed
        else ()
    )
    return replace(
        again,
        toolkit=fresh.toolkit,
        directives=tuple(row for row in again.directives if row[0] not in after or row[0] in now),
        script_file=fresh.script_file,
        forced=fresh.forced,
        notes=(*fresh.notes, *notes),
        warnings=fresh.warnings,
    )


def _moved(value: Any, old: str, new: str) -> Any:
    """Return plain data with one directory in place of another in all of its texts."""
    if isinstance(value, str):
        return re.sub(re.escape(old) + r"(?=/|\Z)", lambda _: new, value)
    if isinstance(value, dict):
        return {key: _moved(item, old, new) for key, item in value.items()}
    return [_moved(item, old, new) for item in value] if isinstance(value, list | tuple) else value


def not_taken(recorded: Plan, job: Job, now: Settings) -> tuple[str, ...]:
    """Return a note on the settings of today that a repeated run does not take.

    Args:
        recorded: the plan of the run.
        job: the settings of the run, with the options of this command.
        now: the settings of the site, the files and the environment of today.
    """
    texts = [
        f"{name} {value} ({now.origins[key]})"
        for key in now.origins
        for mine in (getattr(now.job, key, None),)
        if isinstance(mine, tuple) or not recorded.origins.get(key, "").startswith("--")
        for name, value in _differences(key, mine, getattr(job, key, None))
    ]
    if not texts:
        return ()
    listed = ", ".join(texts)
    return (f"planned as recorded; not taken: {listed}. An option with the value takes it",)


def _differences(key: str, now: Any, recorded: Any) -> Iterator[tuple[str, object]]:
    if isinstance(now, dict):
        for name, value in now.items():
            yield from _differences(f"{key} {name}", value, (recorded or {}).get(name))
    elif isinstance(now, tuple):  # it was joined with what the options gave
        for word in now:
            if word not in (recorded or ()):
                yield key, word
    elif now != recorded:
        yield key, now
