"""Check that Horovod is built for the frameworks of the image.

Three witnesses must agree: `horovodrun --check-build`, the metadata of Horovod's build, and its
modules. One alone is not enough: ``--check-build`` was seen to show PyTorch for a build that had
been made for TensorFlow only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.checks import Result, check, failed, passed, unchecked
from toolkit.images.verify.case import ImageCase

_MODULES = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}
_SECTIONS = {
    "Frameworks": "frameworks",
    "Controllers": "controllers",
    "Tensor Operations": "operations",
}


@check("horovod-build", "Horovod is built for the frameworks of the image")
def check_horovod_build(case: ImageCase) -> Result:
    """Check Horovod's build by its own report, its metadata and its modules."""
    if case.no_python:
        return unchecked(case.no_python)
    expected = _expected(case)
    if not case.has("horovod"):
        return (
            failed("its manifest says that Horovod is in it, and it is not")
            if expected
            else unchecked("no Horovod is in it")
        )
    facts, result = case.runner.report_of("horovod_facts.py")
    if facts is None:
        return failed(f"Horovod could not be asked: {' '.join(result.tail(1))}")
    case.controllers = tuple(marked(facts["output"])["controllers"])
    return judge(facts, expected, {**case.expected, **case.frameworks})


def _expected(case: ImageCase) -> tuple[str, ...]:
    """Return the frameworks that the image's own check, made from its recipe, names."""
    command = case.contents.own_checks.get("horovod-build", "").split()
    named = command[: command.index(",")] if "," in command else command
    return tuple(framework for framework in _MODULES if framework in named) or (
        ("",) if "horovod" in case.expected else ()
    )


def marked(text: str) -> dict[str, list[str]]:
    """Return what `horovodrun --check-build` marks, by section, in lower case."""
    marks: dict[str, list[str]] = {name: [] for name in _SECTIONS.values()}
    section = ""
    for line in text.splitlines():
        head = re.match(r"Available (.+):", line)
        section = _SECTIONS.get(head[1], "") if head else section
        mark = re.match(r"\s*\[X\] (\S+)", line)
        if mark and section:
            marks[section].append(mark[1].lower())
    return marks


def judge(facts: Mapping[str, Any], expected: Iterable[str], versions: Mapping[str, str]) -> Result:
    """Compare what the three witnesses say.

    Args:
        facts: the output of --check-build and its exit ``code``; ``metadata``, None if there is
            none; ``modules``: for each installed framework why Horovod's module for it cannot be
            imported, empty if it can.
        expected: frameworks that Horovod must be built for.
        versions: of the modules in the image.
    """
    if facts["code"] != 0:
        last = (facts["output"].strip() or "?").splitlines()[-1]
        return failed(f"horovodrun --check-build ended with {facts['code']}: {last}")
    marks = marked(facts["output"])
    wrong = [
        text
        for framework in _MODULES
        for text in _faults(
            framework, facts, marks["frameworks"], versions, wanted=framework in expected
        )
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
    names = ", ".join(f"{framework} {metadata.get(framework, '')}".strip() for framework in built)
    notes = [
        f"--check-build also shows {framework}, which is not in the image"
        for framework in marks["frameworks"]
        if framework not in facts["modules"]
    ]
    notes += (
        [] if facts["metadata"] is not None else ["this release keeps no metadata of its build"]
    )
    parts = f"with {', '.join(marks['controllers'])}; operations {', '.join(marks['operations'])}"
    return passed("; ".join((f"built for {names}, {parts}", *notes)))


def _faults(
    framework: str,
    facts: Mapping[str, Any],
    marks: Iterable[str],
    versions: Mapping[str, str],
    *,
    wanted: bool,
) -> Iterable[str]:
    """Yield the contradictions about one framework.

    A framework that is neither in the image nor expected does not matter.
    """
    module, metadata = _MODULES[framework], facts["metadata"]
    if framework not in facts["modules"]:
        if wanted:
            yield f"it should work with {framework}, which is not in the image"
        return
    is_shown, reason = framework in marks, facts["modules"][framework]
    is_recorded = metadata is None or framework in metadata
    if is_shown and not is_recorded:
        yield f"--check-build shows {framework}, but the metadata of its build does not have it"
    if is_shown and reason:
        yield f"--check-build shows {framework}, but horovod.{module} cannot be imported ({reason})"
    if wanted and not is_shown:
        yield f"--check-build does not show {framework}"
    if not is_shown and metadata is not None and framework in metadata:
        yield f"the metadata of its build has {framework}, but --check-build does not show it"
    built_for, installed = (metadata or {}).get(framework), versions.get(module)
    if is_shown and built_for and installed and built_for != installed:
        yield f"it was built for {module} {built_for}, and {installed} is in the image"
