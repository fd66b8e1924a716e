"""Compares three witnesses of Horovod's build: `horovodrun --check-build`, the metadata of the build, and its modules.

One alone is not enough: --check-build was seen to show PyTorch for a build that had been made for TensorFlow only.
Arguments: frameworks and operations that it must be built with, a comma between them: pytorch , mpi gloo
"""

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}
SECTIONS = {"Frameworks": "frameworks", "Controllers": "controllers", "Tensor Operations": "operations"}


def marked(text: str) -> "dict[str, list[str]]":
    """Return what `horovodrun --check-build` marks, by section, in lower case."""
    marks: dict[str, list[str]] = {name: [] for name in SECTIONS.values()}
    section = ""
    for line in text.splitlines():
        head = re.match(r"\s*Available (.+):", line)
        section = SECTIONS.get(head.group(1), "") if head else section
        mark = re.match(r"\s*\[X\] (\S+)", line)
        if mark and section:
            marks[section].append(mark.group(1).lower())
    return marks


def faults(name: str, marks: Any, metadata: Any, reason: "str | None", version: str, required: bool) -> Any:
    """Yield the contradictions about one framework; `reason` is why Horovod's module for it fails, None if the framework is not there."""
    if reason is None:
        if required:
            yield f"it should work with {name}, which is not in the image"
        return
    shown, recorded = name in marks, metadata is None or name in metadata
    if shown and not recorded:
        yield f"--check-build shows {name}, but the metadata of its build does not have it"
    if shown and reason:
        yield f"--check-build shows {name}, but horovod.{MODULES[name]} cannot be imported ({reason})"
    if required and not shown:
        yield f"--check-build does not show {name}"
    if not shown and metadata is not None and recorded:
        yield f"the metadata of its build has {name}, but --check-build does not show it"
    built_for = (metadata or {}).get(name)
    if shown and built_for and version and built_for != version:
        yield f"Horovod was built for {name} {built_for}, and {version} is in the image"


def judge(marks: Any, metadata: Any, reasons: Any, versions: Any, frameworks: Any, operations: Any) -> "tuple[bool, str]":
    """Return whether the witnesses agree, and what they say."""
    wrong = [
        fault
        for name in MODULES
        for fault in faults(name, marks["frameworks"], metadata, reasons.get(name), versions.get(name, ""), name in frameworks)
    ]
    built = [name for name in MODULES if name in marks["frameworks"] and reasons.get(name) == ""]
    every = {name for names in marks.values() for name in names}
    wrong += [f"--check-build does not show {name}" for name in operations if name not in every]
    if not wrong and not built:
        wrong.append("it is built for no framework that is in the image")
    if not marks["controllers"]:
        wrong.append("it has neither MPI nor Gloo")
    if wrong:
        return False, "; ".join(wrong)
    names = ", ".join(f"{name} {(metadata or {}).get(name, '')}".strip() for name in built)
    notes = [f"--check-build also shows {name}, which is not in the image" for name in marks["frameworks"] if name not in reasons]
    notes += [] if metadata is not None else ["this release keeps no metadata of its build"]
    parts = f"with {', '.join(marks['controllers'])}; operations {', '.join(marks['operations'])}"
    return True, "; ".join((f"built for {names}, {parts}", *notes))


def read_metadata() -> Any:
    """Return the metadata of Horovod's build; None if there is none."""
    spec = find_spec("horovod")
    try:
        return json.loads((Path(spec.origin).parent / "metadata.json").read_text()) if spec and spec.origin else None
    except (OSError, ValueError):
        return None


def reason_of(module: str) -> str:
    """Return why a module cannot be imported; empty if it can."""
    try:
        import_module(module)
    except BaseException as error:  # also SystemExit
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
    return ""


def check_build(program: str) -> "tuple[int, str]":
    """Run `horovodrun --check-build`; return its exit code and what it printed.

    In a fork of this process it finds what is imported already: it imports each framework seven times.
    """
    try:
        with Path(program).open("rb") as stream:
            is_python = b"python" in stream.readline(200)
        if is_python:
            code, text = import_module("forked").run_forked(program, "--check-build")
            return int(code), str(text)
        done = subprocess.run([program, "--check-build"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout.decode(errors="replace").strip()
    except OSError as error:
        return 127, str(error)


def main() -> None:
    """Ask the witnesses, and judge what they say."""
    split = sys.argv.index(",")
    reasons = {name: reason_of(f"horovod.{module}") for name, module in MODULES.items() if find_spec(module)}
    versions = {name: str(getattr(sys.modules.get(MODULES[name]), "__version__", "")) for name in reasons}
    code, text = check_build(shutil.which("horovodrun") or "horovodrun")
    if code:
        sys.exit(f"horovodrun --check-build ended with {code}: {(text or '?').splitlines()[-1]}")
    print(text)
    marks = marked(text)
    for name in marks["controllers"]:
        print(f"toolkit-fact: controller {name}")
    right, says = judge(marks, read_metadata(), reasons, versions, sys.argv[1:split], sys.argv[split + 1 :])
    print(says)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
