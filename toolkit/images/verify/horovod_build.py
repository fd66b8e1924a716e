"""Horovod is built for what is in the image: `horovodrun --check-build` says so, the metadata of its build, and its modules.

One of the three alone is not believed: ``--check-build`` was seen to show PyTorch of a build that
had been made for TensorFlow only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.images.verify.case import Answer, Case, failed, passed, unchecked

_MODULES = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}
_SECTIONS = {
    "Frameworks": "frameworks",
    "Controllers": "controllers",
    "Tensor Operations": "operations",
}


def verify(case: Case) -> Answer:
    if case.no_python:
        return unchecked(case.no_python)
    promised = _promised(case)
    if not case.has("horovod"):
        return (
            failed("its manifest says that Horovod is in it, and it is not")
            if promised
            else unchecked("no Horovod is in it")
        )
    facts, result = case.inside.told("horovod_facts.py")
    if facts is None:
        return failed(f"Horovod could not be asked: {' '.join(result.tail(1))}")
    case.controllers = tuple(shown(facts["said"])["controllers"])
    return judge(facts, promised, {**case.promised, **case.frameworks})


def _promised(case: Case) -> tuple[str, ...]:
    """The frameworks that its Horovod must work with: those of its own check, which its recipe gave it."""
    command = case.looked.own.get("horovod-build", "").split()
    named = command[: command.index(",")] if "," in command else command
    return tuple(framework for framework in _MODULES if framework in named) or (
        ("",) if "horovod" in case.promised else ()
    )


def shown(said: str) -> dict[str, list[str]]:
    """What `horovodrun --check-build` marks, by section, in small letters."""
    found: dict[str, list[str]] = {name: [] for name in _SECTIONS.values()}
    section = ""
    for line in said.splitlines():
        head = re.match(r"Available (.+):", line)
        section = _SECTIONS.get(head[1], "") if head else section
        mark = re.match(r"\s*\[X\] (\S+)", line)
        if mark and section:
            found[section].append(mark[1].lower())
    return found


def judge(facts: Mapping[str, Any], promised: Iterable[str], versions: Mapping[str, str]) -> Answer:
    """What the three places say together.

    Args:
        facts: ``said`` (of --check-build) and its exit ``code``; ``metadata`` (None: there is none); ``modules``: for each framework that
            is installed why Horovod's module for it cannot be imported, empty where it can.
        promised: frameworks that Horovod must be built for.
        versions: of the modules in the image.
    """
    if facts["code"] != 0:
        return failed(
            f"horovodrun --check-build ended with {facts['code']}: {(facts['said'].strip() or '?').splitlines()[-1]}"
        )
    marks = shown(facts["said"])
    wrong = [
        text
        for framework in _MODULES
        for text in _wrong(framework, facts, marks["frameworks"], framework in promised, versions)
    ]
    built = [
        framework
        for framework in _MODULES
        if framework in marks["frameworks"] and facts["modules"].get(framework) == ""
    ]
    if not wrong and not built:
        wrong.append("it is built for no framework that is in the image")
    if not marks["controllers"]:
        wrong.append("it has neither MPI nor Gloo")
    if wrong:
        return failed("; ".join(wrong))
    metadata = facts["metadata"] or {}
    said = ", ".join(f"{framework} {metadata.get(framework, '')}".strip() for framework in built)
    notes = [
        f"--check-build also shows {framework}, which is not in the image"
        for framework in marks["frameworks"]
        if framework not in facts["modules"]
    ]
    notes += (
        [] if facts["metadata"] is not None else ["this release keeps no metadata of its build"]
    )
    return passed(
        "; ".join(
            (
                f"built for {said}, with {', '.join(marks['controllers'])}; operations {', '.join(marks['operations'])}",
                *notes,
            )
        )
    )


def _wrong(
    framework: str,
    facts: Mapping[str, Any],
    marked: Iterable[str],
    wanted: bool,
    versions: Mapping[str, str],
) -> Iterable[str]:
    """What does not fit of one framework; what is not in the image and was promised to nobody does not matter."""
    module, metadata = _MODULES[framework], facts["metadata"]
    if framework not in facts["modules"]:
        if wanted:
            yield f"it should work with {framework}, which is not in the image"
        return
    is_shown, reason = framework in marked, facts["modules"][framework]
    is_recorded = metadata is None or framework in metadata
    if is_shown and not is_recorded:
        yield f"--check-build shows {framework}, but the metadata of its build does not have it"
    if is_shown and reason:
        yield f"--check-build shows {framework}, but horovod.{module} cannot be imported ({reason})"
    if wanted and not is_shown:
        yield f"--check-build does not show {framework}"
    if not is_shown and metadata is not None and framework in metadata:
        yield f"the metadata of its build has {framework}, but --check-build does not show it"
    built_for, there = (metadata or {}).get(framework), versions.get(module)
    if is_shown and built_for and there and built_for != there:
        yield f"it was built for {module} {built_for}, and {there} is in the image"
