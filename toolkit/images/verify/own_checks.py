"""Run programs and checks in an image: its own, and the same scripts mounted into it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from toolkit import shell
from toolkit.checks import Result, failed, passed
from toolkit.config import package_directory
from toolkit.errors import CommandFailedError
from toolkit.images.recipe.block import CHECKS, CheckCall
from toolkit.images.recipe.compiled import rank_checks
from toolkit.images.recipe.quoting import quote_words
from toolkit.images.store.settings import run_in_image, user_options
from toolkit.model.base import Model

MOUNTED = "/mnt/toolkit/checks"  # where the image has the scripts of ``images/checks``
_MARK = "toolkit-json: "  # begins the line in which ``checks/look.py`` reports
_PATIENCE, _PATIENCE_FOR_ALL = 300.0, 900.0  # seconds for one program, and for all checks together
_CHECK = re.compile(r"toolkit-check: (?P<name>\S+) (?P<outcome>passed|failed): (?P<detail>.*)")
_FACT = re.compile(r"toolkit-fact: (?P<kind>framework|mpi|controller|gpu-code) (?P<value>\S.*)")
# horovodrun's prefix of its ranks' lines.
_RANK = re.compile(r"\[\d+(?:,\d+)?\]<std(?:out|err)>: ?")


class ImageContents(Model, frozen=True, kw_only=True):
    """The contents of an image, as ``checks/look.py`` lists them without importing anything.

    Attributes:
        python: version of Python 3; empty if there is none.
        modules: the frameworks and related modules in it.
        programs: the programs of MPI, Horovod and torch that are on PATH.
        cuda: version of CUDA; empty if there is none.
        compat: whether it has CUDA's compat package, by which data-center GPUs run newer CUDA on
            older drivers.
        has_checks: whether it carries checks of its own.
    """

    python: str = ""
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    cuda: str = ""
    compat: bool = False
    has_checks: bool = False


@dataclass
class Results:
    """The results that the checks of an image printed."""

    checks: list[Result] = field(default_factory=list)
    frameworks: dict[str, str] = field(default_factory=dict)
    mpi: list[str] = field(default_factory=list)
    controllers: list[str] = field(default_factory=list)
    gpu_code: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def feed(self, line: str) -> Result | None:
        """Take a line; return the result of the check that it reports, if it reports one."""
        check, fact = _CHECK.match(line), _FACT.match(line)
        if check:
            make = passed if check["outcome"] == "passed" else failed
            self.checks.append(make(_RANK.sub("", check["detail"]), name=check["name"]))
            return self.checks[-1]
        if fact and fact["kind"] == "framework":
            name, _, version = fact["value"].partition(" ")
            self.frameworks[name] = version
        elif fact and fact["kind"] == "gpu-code":
            name, *architectures = fact["value"].split()
            self.gpu_code[name] = tuple(architectures)
        elif fact:
            (self.mpi if fact["kind"] == "mpi" else self.controllers).append(fact["value"])
        return None

    def find(self, name: str) -> Result | None:
        """Return the result of a check: a failure, if it ran twice and one failed."""
        named = [check for check in self.checks if check.name == name]
        return min(named, key=lambda check: check.outcome == "passed", default=None)

    @property
    def failed(self) -> list[Result]:
        """The checks that failed."""
        return [check for check in self.checks if check.outcome == "failed"]


@dataclass(frozen=True)
class ImageRunner:
    """Runs programs in an image without help from this machine: no home, variables or ``/tmp``.

    Attributes:
        image: the SIF file.
        gpus: with the node's NVIDIA driver.
        as_user: as an ordinary user, also if root calls.
    """

    image: str
    gpus: bool = False
    as_user: bool = False

    def run(
        self,
        argv: Sequence[str],
        *,
        action: Literal["exec", "run"] = "exec",
        timeout: float = _PATIENCE,
    ) -> shell.Result:
        """Run a program; a failure is in the result.

        Raises:
            CommandFailedError: it gave no answer within ``timeout`` seconds.
        """
        options = [
            *(("--nv",) if self.gpus else ()),
            *(user_options() if self.as_user else ()),
            *("--bind", f"{package_directory('images/checks')}:{MOUNTED}:ro"),
        ]
        return run_in_image(self.image, argv, timeout=timeout, action=action, options=options)

    def contents(self) -> ImageContents | None:
        """Return the contents of the image; None if it has no Python 3 that runs."""
        try:
            lines = self.run(["python3", f"{MOUNTED}/look.py"]).stdout.splitlines()
        except CommandFailedError:
            return None
        report = next((line for line in reversed(lines) if line.startswith(_MARK)), None)
        if report is None:
            return None
        return msgspec.json.decode(report.removeprefix(_MARK), type=ImageContents)

    def run_checks(self, results: Results, *words: str) -> shell.Result:
        """Have the image's shell run checks, by default those that it carries; add their results.

        Raises:
            CommandFailedError: they did not end in time.
        """
        before = len(results.failed)
        done = self.run(["/bin/sh", *(words or (f"{CHECKS}/run",))], timeout=_PATIENCE_FOR_ALL)
        for line in done.stdout.splitlines():
            results.feed(line)
        if not done.ok and len(results.failed) == before:
            detail = f"the checks ended with {done.returncode}: {' '.join(done.tail(1))}"
            results.checks.append(failed(detail, name="checks"))
        return done


def usual_checks(contents: ImageContents, modules: Collection[str]) -> tuple[CheckCall, ...]:
    """Return the checks that are made of every image that has what they take.

    Args:
        contents: of the image.
        modules: that must be imported.
    """
    mpi, gloo = rank_checks(("mpi", "gloo"), has_torch="torch" in contents.modules)
    scripts = {
        "imports": f"imports.py {quote_words(modules)}",
        "user-site": "user_site.py --foreign",
        "gpu-code": "gpu_code.py",
        "horovod-build": "horovod_build.py ,",
        "ranks-nccl": "ranks.py torch nccl 2 1 start",
    }
    if "horovod" not in contents.modules:
        scripts["ranks-gloo"] = "ranks.py torch gloo 2 1 start"
    calls = [CheckCall(name=name, command=text, is_python=True) for name, text in scripts.items()]
    openmpi = CheckCall(name="openmpi", command="sh openmpi.sh")
    return (*calls, openmpi, mpi, *(() if "ranks-gloo" in scripts else (gloo,)))


def list_lacks(
    contents: ImageContents,
    modules: Collection[str],
    gpus: int,
    controllers: Collection[str] = (),
) -> dict[str, str]:
    """Return what an image lacks for each of the usual checks; empty if nothing.

    Args:
        contents: of the image.
        modules: that must be imported.
        gpus: the number of GPUs for NCCL.
        controllers: how the image's Horovod can coordinate; empty if that is not known.
    """
    has, programs = contents.modules, contents.programs
    built = [name for name in ("mpi", "gloo") if name in (controllers or ("mpi", "gloo"))]
    by_gloo = "torch" in has or ("horovod" in has and "gloo" in built)
    python = (contents.python, "the image has no Python 3 that runs")
    # By check what it takes, and the reason if the image lacks that; the first reason counts.
    takes: dict[str, tuple[tuple[object, str], ...]] = {
        "imports": (python, (modules, "no framework was found, and no manifest names one")),
        "user-site": (python,),
        "gpu-code": (
            python,
            (contents.cuda, "no CUDA is in it"),
            ({"torch", "tensorflow"} & {*has}, "no framework is in it that lists its code"),
        ),
        "openmpi": (
            (
                "ompi_info" in programs or "mpichversion" not in programs,
                "it has MPICH, whose PMI types cannot be listed",
            ),
            ("ompi_info" in programs, "no MPI is in it"),
        ),
        "horovod-build": (python, ("horovod" in has, "no Horovod is in it")),
        "ranks-mpi": (
            python,
            ("horovod" in has, "no Horovod is in it, by which ranks would sum over MPI"),
            ("mpirun" in programs, "no mpirun is in it"),
            ("mpi" in built, "its Horovod is built without MPI"),
        ),
        "ranks-gloo": (python, (by_gloo, "neither a Horovod with Gloo nor torch is in it")),
        "ranks-nccl": (
            python,
            (contents.cuda, "no CUDA is in it"),
            ("torch" in has, "no torch is in it, by which ranks would sum over NCCL"),
            (gpus, "this machine has no GPU"),
            (gpus > 1, "this machine has one GPU; two ranks of NCCL need one each"),
        ),
    }
    return {
        name: next((reason for held, reason in pairs if not held), "")
        for name, pairs in takes.items()
    }
