"""The checks that run in an image: those that it carries, and the same scripts mounted into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from toolkit import shell
from toolkit.errors import CommandFailedError
from toolkit.images.recipe.block import CHECKS, CheckCall
from toolkit.images.recipe.blocks.horovod import rank_checks
from toolkit.images.recipe.image_checks import runner as runner_script
from toolkit.images.verify.runner import MOUNTED, ImageContents, ImageRunner
from toolkit.model.image import Check

_TIMEOUT = 900.0  # seconds for all checks together
_CHECK = re.compile(r"toolkit-check: (?P<name>\S+) (?P<outcome>passed|failed): (?P<detail>.*)")
_FACT = re.compile(r"toolkit-fact: (?P<kind>framework|mpi|controller) (?P<value>.+)")
# horovodrun's prefix of its ranks' lines.
_RANK = re.compile(r"\[\d+(?:,\d+)?\]<std(?:out|err)>: ?")


@dataclass
class Results:
    """The results that the checks of an image printed."""

    checks: list[Check] = field(default_factory=list)
    frameworks: dict[str, str] = field(default_factory=dict)
    mpi: list[str] = field(default_factory=list)
    controllers: list[str] = field(default_factory=list)

    def feed(self, line: str) -> Check | None:
        """Take a line; return the check that it reports, if it reports one."""
        result = _CHECK.match(line)
        if result:
            check = Check(
                name=result["name"],
                passed=result["outcome"] == "passed",
                detail=_RANK.sub("", result["detail"]),
            )
            self.checks.append(check)
            return check
        fact = _FACT.match(line)
        if fact and fact["kind"] == "framework":
            name, _, version = fact["value"].partition(" ")
            self.frameworks[name] = version
        elif fact:
            (self.mpi if fact["kind"] == "mpi" else self.controllers).append(fact["value"])
        return None

    def find(self, name: str) -> Check | None:
        """Return the result of a check: a failure, if it ran twice and one failed."""
        named = [check for check in self.checks if check.name == name]
        return min(named, key=lambda check: check.passed, default=None)

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if not check.passed]


def run_carried(image: ImageRunner) -> tuple[Results, shell.Result]:
    """Run the checks that an image carries; return the results, and what was printed.

    Raises:
        CommandFailedError: They did not end in time.
        NeedsInstallError: Apptainer is not installed.
    """
    results = Results()
    return results, _run(image, results, f"{CHECKS}/run")


def run_checks(
    image: ImageRunner,
    contents: ImageContents,
    expected: Mapping[str, str],
    gpus: int,
    *,
    own: bool,
) -> Results:
    """Run the checks that an image carries, and mounted into it the usual ones that it lacks.

    Args:
        image: The image.
        contents: Its contents.
        expected: The modules that its manifest lists.
        gpus: The number of GPUs of this machine.
        own: It is an image of ours.
    """
    results = Results()
    try:
        if contents.has_checks:
            _run(image, results, f"{CHECKS}/run")
        wanted = (*contents.modules, *expected)
        modules = [name for name in dict.fromkeys(wanted) if name not in results.frameworks]
        calls = [
            call
            for call in usual_checks(contents, modules, gpus, own=own)
            if not results.find(call.name)
            or (call.name == "imports" and set(modules) & {*expected})
        ]
        if calls:
            _run(image, results, "-c", runner_script(calls, contents.modules, MOUNTED))
    except CommandFailedError as error:
        results.checks.append(Check(name="checks", passed=False, detail=error.cause))
    return results


def _run(image: ImageRunner, results: Results, *words: str) -> shell.Result:
    done = image.run(["/bin/sh", *words], timeout=_TIMEOUT)
    before = len(results.failed)
    for line in done.stdout.splitlines():
        results.feed(line)
    if not done.ok and len(results.failed) == before:
        detail = f"the checks ended with {done.returncode}: {' '.join(done.tail(1))}"
        results.checks.append(Check(name="checks", passed=False, detail=detail))
    return done


def usual_checks(
    contents: ImageContents, modules: Iterable[str], gpus: int, *, own: bool
) -> tuple[CheckCall, ...]:
    """Return the checks for which an image has what they take, as recipes have them."""
    calls: list[CheckCall] = []
    if not contents.python:
        return ()
    names, programs = " ".join(modules), contents.programs
    has_torch = "torch" in contents.modules

    def add(name: str, command: str, *, is_python: bool = True) -> None:
        calls.append(CheckCall(name=name, command=command, is_python=is_python))

    if names:
        add("imports", f"imports.py {names}")
    add("user-site", f"user_site.py{'' if own else ' --foreign'}")
    if "ompi_info" in programs:
        add("openmpi", "sh openmpi.sh", is_python=False)
    if "horovod" in contents.modules:
        add("horovod-build", "horovod_build.py ,")
        ranks = (*(("mpi",) if "mpirun" in programs else ()), "gloo")
        calls += rank_checks(ranks, has_torch=has_torch)
    elif has_torch:
        add("ranks-gloo", "ranks.py torch gloo 2 1 start")
    if contents.cuda and has_torch and gpus > 1:
        add("ranks-nccl", "ranks.py torch nccl 2 1 start")
    return tuple(calls)
