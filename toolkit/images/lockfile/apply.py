"""Building exactly what a lock says: nothing of the recipe changes, but where its packages come from. Pure.

A build takes packages through what the machine lends it (``loan``). So a lock becomes another loan:
pip finds the locked files in a directory and nothing else, and apt gets a preference for every
version, and a question that it asks of the mirror after each update. The steps are the same words
in an open build and in a locked one, and each engine lends alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone

import msgspec

from toolkit.errors import MalformedInputError
from toolkit.images.build.contents import Contents
from toolkit.images.build.host_mounts import CERTIFICATES, ROOT, Bind, HostConfig
from toolkit.images.build.reproducible import BYTE_CODE
from toolkit.images.lockfile.packages import normal
from toolkit.images.recipe.bases import Base
from toolkit.images.recipe.resolve import Resolved
from toolkit.model.lock import Lock

PREFERENCES, QUESTION = "apt-preferences", "apt-locked.sh"
_FILES = "find-links/locked"  # below ROOT
_MISSING = "toolkit-locked: "  # begins the line that names a package which the mirror does not have
_OURS = re.compile(rf"{_MISSING}(?P<what>\S{{1,200}} \S{{1,200}} \([^()\n]{{0,200}}\))")
_NOT_CONTENTS = (
    "name",
    "detail",
    "imports",
    "checks",
    "installed",
    "brings",
    "requirements",
    "replaces",
    "index",
)  # of a output
_NAMED = re.compile(r"(?<![\w.-])(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>\d[\w.+!]*)")
_DEBIAN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~:_-]*\Z")
_BYTE_CODE = "byte-code.py"
_REWRITE = f"""
    if command -v python3 >/dev/null 2>&1; then
        find / -xdev -type f -name '*.pyc' -print0 > /tmp/byte-code
        python3 -I -S -B {ROOT}/{_BYTE_CODE} /tmp/byte-code
    fi"""
_PIN = 1001  # priority from which on apt would even take an older version

# After an update: every version that neither the image nor the mirror has is named, and the update
# fails.
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
            failed = 1
        }}
    exit failed
}}'
"""


def parts(resolved: Resolved) -> dict[str, str]:
    """Hashes of what a recipe consists of, by name: for saying which part has changed."""
    found = {
        "base": _hash((*resolved.base.header(), *resolved.base.setup(), *resolved.base.finish()))
    }
    for output in resolved.outputs:
        name = output.name
        while name in found:  # packages of several steps may come under one name
            name += "+"
        found[name] = _hash(
            repr(value)
            for key, value in msgspec.structs.asdict(output).items()
            if key not in _NOT_CONTENTS
        )
    return found


def build_requirements(resolved: Resolved) -> dict[str, str]:
    """Packages of Python that the build stage asks for by name and version."""
    lines = (
        line
        for output in resolved.outputs
        for line in getattr(output, "build_lines", ())
        if line.lstrip().startswith("pip ")
    )
    return {found["name"]: found["version"] for line in lines for found in _NAMED.finditer(line)}


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def changes(lock: Lock, resolved: Resolved, recipe_hash: str) -> tuple[str, ...]:
    """What of a recipe is not as it was when it was locked, for people; nothing where all is."""
    if recipe_hash == lock.recipe_hash:
        return ()
    now, details = parts(resolved), {output.name: output.detail for output in resolved.outputs}
    added = (
        f"{name} is new: {details.get(name.rstrip('+'), '')}".rstrip(": ")
        for name in now
        if name not in lock.parts
    )
    gone = (f"{name} is gone" for name in lock.parts if name not in now)
    changed = (
        f"{name} has changed: {details.get(name.rstrip('+'), '')}".rstrip(": ")
        for name in now
        if lock.parts.get(name, now[name]) != now[name]
    )
    return (*changed, *added, *gone) or ("checks, labels, or how definitions are written",)


def locked_base(base: Base, lock: Lock) -> Base:
    """The base, by the digest of the lock where its kind can be asked for by one."""
    if lock.base.digest and "digest" in type(base).__struct_fields__:
        return msgspec.structs.replace(base, digest=lock.base.digest)
    return base


def locked_definition(definition: str, lock: Lock) -> str:
    """Return a definition for Apptainer of which two builds are equal.

    Its labels do not say when it was built, but when it was locked, and byte code is written again
    at the end (``reproducible``).
    """
    when = datetime.fromtimestamp(lock.epoch, timezone.utc).isoformat(timespec="seconds")
    head, section, labels = definition.rpartition("\n%labels\n")
    post, environment, rest = head.rpartition("\n\n%environment\n")
    return f"{post}\n{_REWRITE}{environment}{rest}{section}    org.label-schema.build-date {when}\n{labels}"


def locked_loan(loan: HostConfig, lock: Lock, files: str) -> HostConfig:
    """What is lent to a locked build.

    Args:
        loan: what this machine lends to any build.
        files: a directory with the files of the lock, and no others.
    """
    kept = [bind for bind in loan.binds if bind.target == CERTIFICATES]
    pip = f"[global]\nno-index = true\nfind-links = {ROOT}/{_FILES}\n"
    lent = {**loan.files, "pip.conf": pip, _BYTE_CODE: BYTE_CODE}
    if lock.apt or lock.apt_build:
        lent[PREFERENCES], lent[QUESTION] = preferences(lock), SCRIPT
        lent["apt.conf"] = loan.files.get("apt.conf", "") + settings()
    return HostConfig(files=lent, binds=(*kept, Bind(source=files, target=_FILES)))


def preferences(lock: Lock) -> str:
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


def settings() -> str:
    """apt's configuration of a locked build."""
    return f'Dir::Etc::preferences "{ROOT}/{PREFERENCES}";\nAPT::Update::Post-Invoke-Success {{ "sh {ROOT}/{QUESTION}"; }};\n'


def with_build_packages(lock: Lock, packages: Mapping[str, str]) -> Lock:
    """A lock that also knows what is there for the build only, and so which of Python's packages Debian's ``venv`` brought."""
    debian = {**packages, **lock.apt}
    pip = tuple(
        msgspec.structs.replace(one, file="", sha256="")
        if re.split("[+-]", debian.get(f"python3-{normal(one.name)}-whl", ""))[0] == one.version
        else one
        for one in lock.pip
    )
    return msgspec.structs.replace(lock, apt_build=dict(packages), pip=pip)


def missing(log: str) -> tuple[str, ...]:
    """The packages that a log names as missing: ``libc6 2.36-9 (there is 2.36-10)``."""
    return tuple(dict.fromkeys(found["what"].strip() for found in _OURS.finditer(log)))


def differences(lock: Lock, contents: Contents) -> tuple[str, ...]:
    """What an image has other than its lock says, for people."""
    has = contents.packages
    pip_wanted = {normal(one.name): one.version for one in lock.pip}
    return (
        *_compared("apt", lock.apt, has.apt),
        *_compared("pip", pip_wanted, {normal(name): version for name, version in has.pip.items()}),
    )


def _compared(kind: str, wanted: Mapping[str, str], has: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*wanted, *has}):
        if wanted.get(name) != has.get(name):
            yield f"{kind} {name}: locked {wanted.get(name, 'not at all')}, built {has.get(name, 'not at all')}"
