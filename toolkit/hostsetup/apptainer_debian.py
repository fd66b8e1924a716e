"""Fit the Apptainer of Debian's rolling suite to a release that has no package of it.

The package comes from the mirror that this machine uses, and is trusted because of the archive's
signature, as every package is. A mirror may be some weeks behind, and an attacker in its place
could replay an old, signed state with an Apptainer that is known to be vulnerable: so the signed
date must not be older than ``MOST_DAYS``, nor the version than ``MINIMUM``. A rolling suite drops
old versions, so whichever it has now is taken. Its programs are fitted to an older glibc where only
the strtol family is in the way (``elf``); where they want more, nothing is installed. The machine's
own libc is not touched.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from pathlib import Path

from toolkit import shell
from toolkit.errors import CommandFailedError, NeedsInstallError
from toolkit.hostsetup import apt, elf
from toolkit.model.base import Model
from toolkit.units import compare

SUITE = "sid"
PACKAGE = "apptainer"
MINIMUM = "1.4.5"  # fixes CVE-2025-65105
MOST_DAYS = 90
_KEYRINGS = ("debian-archive-keyring.pgp", "debian-archive-keyring.gpg")
_DATE = re.compile(r"^Date: (.+)$", re.MULTILINE)
_BY_HAND = (
    "install Apptainer yourself (https://apptainer.org/docs/admin/latest/installation.html), "
    "then: toolkit setup"
)


class Source(Model, frozen=True, kw_only=True):
    """A place of our own where apt keeps the rolling suite's lists, apart from the machine's."""

    mirror: str
    options: tuple[str, ...]
    directory: str


class Offer(Model, frozen=True, kw_only=True):
    """The package that the suite has now."""

    version: str
    size: int
    installed_size: int


def mirror(codename: str) -> str:
    """Return the Debian mirror that this machine's apt uses for its own release.

    Raises:
        CommandFailedError: apt names none.
    """
    form = "$(REPO_URI)|$(CODENAME)|$(RELEASE)|$(LABEL)"
    lines = shell.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], env=apt.environment()
    ).stdout.splitlines()
    uri = read_mirror(lines, codename)
    if uri is None:
        raise CommandFailedError(
            f"apt knows no mirror of Debian {codename} here",
            place="/etc/apt/sources.list",
            next_step=_BY_HAND,
        )
    return uri


def read_mirror(lines: list[str], codename: str) -> str | None:
    """Return the first archive of the release itself, not of its updates or of another vendor."""
    rows = [line.split("|") for line in lines if line.count("|") == 3]
    return next(
        (
            uri
            for uri, name, release, label in rows
            if codename in (name, release) and label in ("Debian", "")
        ),
        None,
    )


def prepare(directory: Path, codename: str) -> Source:
    """Set apt up for the suite in ``directory``, and fetch its lists.

    Raises:
        CommandFailedError: they cannot be had, or their signature is wrong.
    """
    keyring = next(
        (
            path
            for path in (Path("/usr/share/keyrings") / name for name in _KEYRINGS)
            if path.exists()
        ),
        None,
    )
    if keyring is None:
        raise NeedsInstallError(
            "the keys of Debian's archive are not here",
            next_step="apt-get install debian-archive-keyring",
        )
    for name in ("lists/partial", "cache/archives/partial", "deb"):
        (directory / name).mkdir(parents=True)
    for path in (directory.parent, directory, *directory.rglob("*")):
        path.chmod(0o755)
        _give_to_apt(path)
    where = mirror(codename)
    (directory / "status").touch()
    (directory / "sources.list").write_text(f"deb [signed-by={keyring}] {where} {SUITE} main\n")
    settings = {
        "Dir::Etc::sourcelist": directory / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": directory / "lists",
        # Nothing is installed, as far as this apt knows: else it would tell of the version that is.
        "Dir::State::status": directory / "status",
        "Dir::Cache": directory / "cache",
        "APT::Default-Release": SUITE,
        "Acquire::Languages": "none",
        # The suite's own limit is a week, and mirrors lag more; its signature is checked all the
        # same, and its age by us.
        "Acquire::Check-Valid-Until": "false",
    }
    source = Source(
        mirror=where,
        options=tuple(word for key, value in settings.items() for word in ("-o", f"{key}={value}")),
        directory=str(directory),
    )
    complaints = apt.update(source.options)
    if apt.candidate(PACKAGE, source.options) is None:
        raise CommandFailedError(
            f"Debian's suite {SUITE} cannot be read from {where}",
            details=complaints,
            next_step=_BY_HAND,
        )
    require_recent(
        [path.read_text(errors="replace") for path in (directory / "lists").glob("*Release")],
        time.time(),
        where,
    )
    require_new_enough(offer(source).version, where)
    return source


def require_recent(releases: Iterable[str], now: float, where: str) -> None:
    """Refuse a signed state of the archive that is too old. Pure.

    Args:
        releases: the texts of its Release files, whose signatures apt has checked.
        now: in seconds since 1970.
        where: the mirror.

    Raises:
        CommandFailedError: the newest is too old, or none has a date.
    """
    dates = [
        parsedate_to_datetime(match[1]).timestamp()
        for text in releases
        for match in _DATE.finditer(text)
    ]
    days = int((now - max(dates)) // 86400) if dates else None
    if days is None or days > MOST_DAYS:
        age = f"is {days} days old, {MOST_DAYS} are the most" if days is not None else "has no date"
        raise CommandFailedError(
            f"the suite {SUITE} on {where} {age}: "
            "an old state could be replayed to install a vulnerable Apptainer",
            place=where,
            next_step=f"another mirror in apt's sources, or {_BY_HAND}",
        )


def require_new_enough(version: str, where: str) -> None:
    """Refuse a version that is known to be vulnerable. Pure.

    Raises:
        NeedsInstallError: it is older than ``MINIMUM``.
    """
    if compare(version.rpartition(":")[2], MINIMUM) < 0:
        raise NeedsInstallError(
            f"{where} has apptainer {version}; before {MINIMUM} it is known to be vulnerable",
            place=where,
            next_step=f"another mirror in apt's sources, or {_BY_HAND}",
        )


def _give_to_apt(path: Path) -> None:
    """Give a path to the user as which apt downloads."""
    try:
        shutil.chown(path, "_apt")
    except (LookupError, PermissionError):
        return


def offer(source: Source) -> Offer:
    """Return the package in the suite."""
    text = shell.run(
        ["apt-cache", *source.options, "--no-all-versions", "show", PACKAGE], env=apt.environment()
    ).stdout
    return read_offer(text)


def read_offer(text: str) -> Offer:
    """Parse an ``Offer`` from a package's record."""
    values = dict(re.findall(r"^([A-Za-z-]+): (.*)$", text, re.MULTILINE))
    return Offer(
        version=values["Version"],
        size=int(values["Size"]),
        installed_size=int(values.get("Installed-Size", 0)) * 1024,
    )


def fetch(source: Source) -> Path:
    """Download the package; apt has checked it against the signed lists."""
    folder = Path(source.directory) / "deb"
    argv = ["apt-get", "-q", *source.options, "-o", "Acquire::Retries=3", "download", PACKAGE]
    shell.run(argv, env=apt.environment(), cwd=folder)
    return next(folder.glob("*.deb"))


def fit(package: Path, codename: str, newest: tuple[int, int]) -> tuple[Path, tuple[str, ...]]:
    """Return the package fitted to a version of glibc, and the references that were changed.

    A package that fits already is returned unchanged.

    Raises:
        NeedsInstallError: its programs want more of a newer glibc than can be given to them.
    """
    tree = package.parent.parent / "tree"
    shell.run(["dpkg-deb", "-R", package, tree])
    changed = _fit_programs(tree, codename, newest)
    if not changed:
        return package, ()
    control = tree / "DEBIAN/control"
    control.write_text(fitted_control(control.read_text(), codename, newest))
    (tree / "DEBIAN/md5sums").write_text(_md5sums(tree))
    target = package.with_name(f"{package.stem}+{codename}1.deb")
    shell.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", tree, target])
    target.chmod(0o644)
    return target, changed


def _fit_programs(tree: Path, codename: str, newest: tuple[int, int]) -> tuple[str, ...]:
    changed: set[str] = set()
    for path in sorted(
        path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()
    ):
        data = path.read_bytes()
        if not elf.is_elf(data):
            continue
        try:
            fitted, names = elf.retarget(data, newest)
        except elf.ElfRefusedError as error:
            raise NeedsInstallError(
                f"Debian's {PACKAGE} of today does not fit {codename}: {path.name} {error}",
                place=path.name,
                next_step=_BY_HAND,
            ) from error
        if names:
            path.write_bytes(fitted)
            changed.update(names)
    return tuple(sorted(changed))


def fitted_control(control: str, codename: str, newest: tuple[int, int]) -> str:
    """Return the control file with its own version, and the libc that its programs now need."""
    versioned = re.sub(r"^Version: (.*)$", rf"Version: \1+{codename}1", control, flags=re.MULTILINE)
    return re.sub(r"\blibc6 \(>= [^()]{0,60}\)", f"libc6 (>= {newest[0]}.{newest[1]})", versioned)


def _md5sums(tree: Path) -> str:
    files = sorted(
        path
        for path in tree.rglob("*")
        if path.is_file() and not path.is_symlink() and "DEBIAN" not in path.relative_to(tree).parts
    )
    conffiles = tree / "DEBIAN/conffiles"
    listed = set(conffiles.read_text().split()) if conffiles.exists() else set()
    rows = ((path, path.relative_to(tree)) for path in files)
    return "".join(
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {name}\n"
        for path, name in rows
        if f"/{name}" not in listed
    )


def glibc() -> tuple[int, int]:
    """Return the version of this machine's glibc."""
    text = os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0"
    major, minor = text.split()[1].split(".")[:2]
    return int(major), int(minor)
