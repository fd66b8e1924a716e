"""Every module that the image is said to hold, or seems to hold, can be imported, in the version that its manifest names."""

from __future__ import annotations

import re

from toolkit.images.verify.case import Answer, Case, failed, passed, unchecked

_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")


def verify(case: Case) -> Answer:
    if case.no_python:
        return (
            unchecked(case.no_python)
            if not case.promised
            else failed(f"{case.no_python}, and it should hold {', '.join(case.promised)}")
        )
    modules = wanted(case)
    if not modules:
        return unchecked("no framework was found, and no manifest names one")
    told, result = case.inside.told("modules.py", *modules)
    if told is None:
        return failed(
            f"importing {', '.join(modules)} ended with {result.returncode}: {' '.join(result.tail(1))}"
        )
    versions = {name: str(version) for name, version in told["versions"].items() if version}
    case.frameworks.update(versions)
    wrong = [f"{name}: {error}" for name, error in told["errors"].items()]
    wrong += [
        f"{name} is {versions[name]}, its manifest says {version}"
        for name, version in case.promised.items()
        if versions.get(name, version) != version
    ]
    return (
        failed("; ".join(wrong))
        if wrong
        else passed(", ".join(f"{name} {version}" for name, version in versions.items()))
    )


def wanted(case: Case) -> tuple[str, ...]:
    """The modules of its manifest, of its own check, and what was found in it."""
    command, _, _ = case.looked.own.get("imports", "").partition(
        " --of "
    )  # packages, which are in the manifest as modules
    own = [
        word
        for word in command.split()
        if _MODULE.match(word) and word != "python3" and not word.endswith(".py")
    ]
    return tuple(dict.fromkeys((*own, *case.promised, *case.looked.modules)))
