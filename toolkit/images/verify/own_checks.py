"""Run programs and checks in an image: its own, and the same scripts mounted into it."""

from __future__ import annotations

import re
import stat
from collections.abc import Collection
from dataclasses import dataclass, field

from toolkit import shell
from toolkit.checks import Result, failed, passed
from toolkit.config import package_directory
from toolkit.errors import ForbiddenError
from toolkit.images.recipe.block import CHECKS, CheckCall
from toolkit.images.recipe.compiled import rank_checks
from toolkit.images.recipe.quoting import quote_words
from toolkit.images.store.contents import MARK, Contents, is_listed, parse
from toolkit.images.store.settings import image_command, user_options
from toolkit.quoting import shell_words

MOUNTED = "/mnt/toolkit/checks"  # where the image has the scripts of ``images/checks``
_PATIENCE = 900.0  # seconds for all checks together
_CHECK = re.compile(r"toolkit-check: (?P<name>\S+) (?P<outcome>passed|failed): (?P<detail>.*)")
OWN_CHECKS = f"/bin/sh {CHECKS}/run"  # runs those that an image carries
_FACT = re.compile(r"toolkit-fact: (?P<kind>framework|mpi|controller|gpu-code) (?P<value>\S.*)")
# horovodrun's prefix of its ranks' lines.
_RANK = re.compile(r"\[\d+(?:,\d+)?\]<std(?:out|err)>: ?")


@dataclass
class Results:
    """The output of one start of an image.

    Attributes:
        is_started: A command runs in it.
        own: What starting it printed, and no command of ours.
        listed: The lines of the list of its contents.
    """

    is_started: bool = False
    own: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)

    checks: list[Result] = field(default_factory=list)
    frameworks: dict[str, str] = field(default_factory=dict)
    mpi: list[str] = field(default_factory=list)
    controllers: list[str] = field(default_factory=list)
    gpu_code: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def feed(self, line: str) -> Result | None:
        """Take a line; return the result of the check that it reports, if it reports one."""
        if is_listed(line):
            self.is_started = True
            self.listed.append(line)
        elif not self.is_started and line.strip():
            self.own.append(line.strip())
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


def start_image(
    image: str, *scripts: str, action: str, gpus: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts an image once for all scripts, and its environment.

    It is started as an ordinary user does it. The output is for ``Results``. The exit code is that
    of the last script that failed.

    Args:
        image: The SIF file.
        scripts: What the image's shell runs, one after the other.
        action: Apptainer's: ``exec``, or ``run``, as jobs start images of ours.
        gpus: With the node's NVIDIA driver.

    Raises:
        ForbiddenError: Root runs the scripts of this installation, which only root can read.
    """
    directory = package_directory("images/checks")
    files = (directory, *directory.glob("*.*"))
    takes = user_options() and any(MOUNTED in script for script in scripts)
    if takes and not all(file.stat().st_mode & stat.S_IROTH for file in files):
        raise ForbiddenError(
            "an image is checked as an ordinary user, who cannot read the checks of this toolkit",
            place=str(directory),
            next_step=shell_words(["chmod", "-R", "go+rX", str(directory)]),
        )
    options = (
        *(("--nv",) if gpus else ()),
        *user_options(),
        *("--bind", f"{directory}:{MOUNTED}:ro"),
    )
    parts = (f"(\n{script}\n) || status=$?" for script in scripts)
    script = "\n".join((f"echo '{MARK} started'; exec 2>&1; status=0", *parts, "exit $status"))
    return image_command(image, ["/bin/sh", "-c", script], action=action, options=options)


def ask(image: str, results: Results, *scripts: str, action: str, gpus: bool = False) -> Contents:
    """Start an image once; add what its checks print to ``results``, and return its contents.

    Raises:
        CommandFailedError: It did not end in time.
    """
    before = len(results.failed)
    argv, env = start_image(image, *scripts, action=action, gpus=gpus)
    done = shell.run(argv, env=env, cwd="/", timeout=_PATIENCE, check=False)
    for line in (*done.stderr.splitlines(), *done.stdout.splitlines()):
        results.feed(line)
    if results.is_started and not done.ok and len(results.failed) == before:
        detail = f"the checks ended with {done.returncode}: {' '.join(done.tail(1))}"
        results.checks.append(failed(detail, name="checks"))
    try:
        return parse(results.listed) or Contents()
    except ValueError as error:
        detail = f"the image's list of its contents cannot be read: {error}"
        results.checks.append(failed(detail, name="checks"))
        return Contents()


def usual_checks(contents: Contents, modules: Collection[str]) -> tuple[CheckCall, ...]:
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
    contents: Contents,
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
