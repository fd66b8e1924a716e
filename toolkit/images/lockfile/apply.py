"""Builds of exactly the packages of a lock. Pure.

Nothing of the recipe changes but the source of its packages. A build takes packages through the
host configuration that is mounted into it. So a lock becomes another host configuration: pip finds
the locked files in a directory and nothing else, and apt gets a preference for every version, and a
script that checks the mirror after each update. The steps are the same text in an open build and in
a locked one, and each engine mounts the configuration in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from toolkit.errors import MalformedInputError
from toolkit.images.host.host_config import CERTIFICATES, ROOT, HostConfig
from toolkit.images.host.kernel import Bind
from toolkit.images.recipe.lock import Lock
from toolkit.images.recipe.names import normalize_name
from toolkit.images.store.contents import Contents

PREFERENCES, QUESTION = "apt-preferences", "apt-locked.sh"
_FILES = "find-links/locked"  # below ROOT
_MISSING = "toolkit-locked: "  # begins the line that names a package which the mirror does not have
_OURS = re.compile(rf"{_MISSING}(?P<what>\S{{1,200}} \S{{1,200}} \([^()\n]{{0,200}}\))")
_DEBIAN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~:_-]*\Z")
_SETTINGS = (  # of apt
    f'Dir::Etc::preferences "{ROOT}/{PREFERENCES}";\n'
    f'APT::Update::Post-Invoke-Success {{ "sh {ROOT}/{QUESTION}"; }};\n'
)
_PIN = 1001  # priority from which on apt would even take an older version

# After an update: every version that neither the image nor the mirror has is named, and the update
# fails. It does not if the mirror has no version at all: apt installs no other one, and a step
# before the package's own may not see its part of the mirror yet.
SCRIPT = f"""\
set -eu
{{
    dpkg-query -W -f '${{Package}} ${{Version}}\\n${{binary:Package}} ${{Version}}\\n'
    apt-cache madison $(sed -n 's/^Package: //p' {ROOT}/{PREFERENCES}) | tr -d ' ' | tr '|' ' '
}} | awk '
BEGIN {{
    while ((getline line < "{ROOT}/{PREFERENCES}") > 0) {{
        split(line, word, " ")
        if (word[1] == "Package:") name = word[2]
        if (word[1] == "Pin:") wanted[name] = word[3]
    }}
}}
$1 in wanted {{ if (wanted[$1] == $2) found[$1] = 1; has[$1] = $2 }}
END {{
    for (name in wanted)
        if (!(name in found)) {{
            print "{_MISSING}" name " " wanted[name] " (there is " (name in has ? has[name] : "none") ")"
            if (name in has) failed = 1
        }}
    exit failed
}}'
"""  # noqa: E501


def locked_host_config(host_config: HostConfig, lock: Lock, files: str) -> HostConfig:
    """Return the host configuration of a locked build.

    Args:
        host_config: that of any build on this machine.
        lock: the lock.
        files: a directory with the files of the lock, and no others.
    """
    certificates = [bind for bind in host_config.binds if bind.target == CERTIFICATES]
    pip = f"[global]\nno-index = true\nfind-links = {ROOT}/{_FILES}\n"
    mounted = {**host_config.files, "pip.conf": pip}
    if lock.apt or lock.apt_build:
        mounted[PREFERENCES], mounted[QUESTION] = format_preferences(lock), SCRIPT
        mounted["apt.conf"] = host_config.files.get("apt.conf", "") + _SETTINGS
    return HostConfig(files=mounted, binds=(*certificates, Bind(source=files, target=_FILES)))


def format_preferences(lock: Lock) -> str:
    """Return apt's preferences: each package in the version of the lock, above all others.

    Raises:
        MalformedInputError: a name or version in the lock cannot be one, such as one with a line
        break.
    """
    both = {**lock.apt_build, **lock.apt}
    wrong = next((text for text in (*both, *both.values()) if not _DEBIAN.match(text)), None)
    if wrong is not None:
        reason = f"{wrong[:100]!r} is no name or version of a package"
        raise MalformedInputError(reason, place=f"the lock of {lock.name}")
    return "\n".join(
        f"Package: {name}\nPin: version {version}\nPin-Priority: {_PIN}\n"
        for name, version in sorted(both.items())
    )


def parse_missing(log: str) -> tuple[str, ...]:
    """Return the packages that a log names as missing: ``libc6 2.36-9 (there is 2.36-10)``."""
    return tuple(dict.fromkeys(line["what"].strip() for line in _OURS.finditer(log)))


def list_differences(lock: Lock, contents: Contents) -> tuple[str, ...]:
    """Return messages about packages of an image that differ from its lock."""
    locked = lock.brought | {pinned.name: pinned.version for pinned in lock.pip}
    has = contents.packages
    sides = [
        {normalize_name(name): version for name, version in packages.items()}
        for packages in (locked, has.pip)
    ]
    return (*_compared("apt", lock.apt, has.apt), *_compared("pip", *sides))


def _compared(kind: str, wanted: Mapping[str, str], has: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*wanted, *has}):
        if wanted.get(name) != has.get(name):
            locked, built = (names.get(name, "not at all") for names in (wanted, has))
            yield f"{kind} {name}: locked {locked}, built {built}"
