"""Check whether Debian's rolling suite has a newer Apptainer than the one that was fitted.

apt never upgrades a package that was installed from a file, so security updates of this one are
checked here: by root, once a week, for it takes some seconds to fetch the suite's lists. The
result is recorded for all users.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from toolkit import shell
from toolkit.errors import ConfigError, ToolkitError
from toolkit.files import read_json, write_atomically
from toolkit.hostsetup import apptainer_debian
from toolkit.model.base import Model, to_json

NOTE = Path("/var/cache/toolkit-apptainer.json")
_INTERVAL = 7 * 86400.0  # seconds


class Note(Model, frozen=True, kw_only=True):
    """The result of the last check of the suite.

    Attributes:
        checked: when, in seconds since 1970.
        offered: the version that the suite has; empty if it could not be read.
    """

    checked: float
    offered: str = ""


def fitted(codename: str) -> str:
    """Return the suite's version of the installed Apptainer if we fitted it, else nothing."""
    if shell.which("dpkg-query") is None:
        return ""
    answer = shell.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", apptainer_debian.PACKAGE],
        check=False,
    )
    return read_fitted(answer.stdout, codename)


def read_fitted(answer: str, codename: str) -> str:
    """Parse dpkg's status of the package: ``installed 1.4.5-2+bookworm1``."""
    status, _, version = answer.strip().partition(" ")
    suffix = f"+{codename}1"
    return (
        version.removesuffix(suffix)
        if codename and status == "installed" and version.endswith(suffix)
        else ""
    )


def known(codename: str) -> str:
    """Return the newer version that was recorded, if there is one."""
    try:
        offered = read_json(NOTE, Note).offered
    except ConfigError:
        return ""
    installed = fitted(codename) if offered else ""
    return offered if installed and _is_newer(offered, installed) else ""


def _is_newer(version: str, other: str) -> bool:
    return shell.run(["dpkg", "--compare-versions", version, "gt", other], check=False).ok


def is_due(now: float) -> bool:
    """Return whether it is time to check the suite again."""
    try:
        return not 0 <= now - read_json(NOTE, Note).checked < _INTERVAL
    except ConfigError:
        return True


def refresh(codename: str, now: float) -> ToolkitError | None:
    """Check the suite as root, and record its version; return the error if that failed.

    Args:
        codename: of this release.
        now: in seconds since 1970.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="toolkit-setup-", dir="/var/tmp") as place:
            offered = apptainer_debian.offer(
                apptainer_debian.prepare(Path(place) / "rolling", codename)
            ).version
            problem = None
    except ToolkitError as error:
        offered, problem = "", error
    write_atomically(NOTE, to_json(Note(checked=now, offered=offered)))
    return problem
