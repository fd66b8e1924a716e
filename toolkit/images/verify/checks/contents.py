"""Checks of what is in the image: how it starts, what it imports, which MPI it has."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

from toolkit.checks import Result, check, failed, passed, unchecked
from toolkit.images.verify.case import ImageCase, at
from toolkit.units import counted

_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")
_WORD = "toolkit-is-in"
_MPI_FACT = "toolkit-fact: mpi "  # begins the lines in which checks/openmpi.sh names PMI types


@check("entrypoint", "starting the image prints nothing", at_build=True)
def check_entrypoint(case: ImageCase) -> Result:
    """Check that starting the image prints nothing: what a rank prints is the rank's own.

    A foreign image is started as jobs start it, by ``exec``: what its own runscript would start is
    not known.
    """
    ours = case.image.manifest is not None and case.image.manifest.runscript
    actions: tuple[Literal["exec", "run"], ...] = ("exec", "run") if ours else ("exec",)
    with ThreadPoolExecutor() as both:
        faults = list(both.map(partial(_entry_fault, case), actions))
    for action, fault in zip(actions, faults, strict=True):
        if fault:
            return failed(f"by {action}: {fault}")
    if ours:
        return passed("prints nothing of its own")
    return passed(
        "prints nothing of its own by exec; its runscript is not used by jobs and was not run"
    )


def _entry_fault(case: ImageCase, action: Literal["exec", "run"]) -> str:
    """Return what is wrong with one way to start the image; empty if nothing is."""
    result = case.runner.run(["/bin/sh", "-c", f"echo {_WORD}"], action=action, timeout=60)
    lines = [
        line for line in (*result.stdout.splitlines(), *result.stderr.splitlines()) if line.strip()
    ]
    if not result.ok or _WORD not in lines:
        reason = (lines or [f"exit code {result.returncode}"])[-1].strip()
        return f"a command does not run in it ({reason})"
    own = [line.strip() for line in lines if line != _WORD]
    return f"it prints {counted(len(own), 'line')} of its own, first: {own[0]}" if own else ""


@check("imports", "every module that the image should have can be imported")
def check_imports(case: ImageCase) -> Result:
    """Check that all modules can be imported, in the versions that the manifest lists."""
    if case.no_python:
        if not case.expected:
            return unchecked(case.no_python)
        return failed(f"{case.no_python}, and it should hold {', '.join(case.expected)}")
    modules = expected_modules(case)
    if not modules:
        return unchecked("no framework was found, and no manifest names one")
    report, result = case.runner.report_of("modules.py", *modules)
    if report is None:
        return failed(
            f"importing {', '.join(modules)} ended with {result.returncode}: "
            f"{' '.join(result.tail(1))}"
        )
    versions = {name: str(version) for name, version in report["versions"].items() if version}
    case.frameworks.update(versions)
    wrong = [f"{name}: {error}" for name, error in report["errors"].items()]
    wrong += [
        f"{name} is {versions[name]}, its manifest says {version}"
        for name, version in case.expected.items()
        if versions.get(name, version) != version
    ]
    if wrong:
        return failed("; ".join(wrong))
    return passed(", ".join(f"{name} {version}" for name, version in versions.items()))


def expected_modules(case: ImageCase) -> tuple[str, ...]:
    """Return the modules of the image's own check, of its manifest, and those found in it."""
    # After --of come packages, which are in the manifest as modules.
    command, _, _ = case.contents.own_checks.get("imports", "").partition(" --of ")
    own = [
        word
        for word in command.split()
        if _MODULE.match(word) and word != "python3" and not word.endswith(".py")
    ]
    return tuple(dict.fromkeys((*own, *case.expected, *case.contents.modules)))


@check("user-site", "packages in a user's home do not hide the image's")
def check_user_site(case: ImageCase) -> Result:
    """Check that Python in the image ignores the user's site packages.

    An image of ours must do so by itself. For a foreign image it is enough that it obeys the
    variable that every job of ours sets.
    """
    if case.no_python:
        return unchecked(case.no_python)
    argv = ["python3", at("checks/user_site.py")]
    alone = case.runner.run(argv)
    if alone.ok:
        return passed("a module in the user's site packages is not imported")
    if case.image.manifest is not None:
        return failed(" ".join(alone.tail(1)))
    in_job = case.runner.run(argv, variables={"PYTHONNOUSERSITE": "1"})
    if in_job.ok:
        return passed("off in jobs, which set PYTHONNOUSERSITE; the image by itself leaves them on")
    return failed(" ".join(in_job.tail(1)))


@check("openmpi", "Slurm can start the image's MPI")
def check_openmpi(case: ImageCase) -> Result:
    """Check that Open MPI supports the PMI types that the manifest lists."""
    programs = case.contents.programs
    expected = case.image.manifest.mpi if case.image.manifest else ()
    if "ompi_info" not in programs:
        if expected:
            return failed(
                f"its manifest says that its MPI speaks {', '.join(expected)}, "
                "and there is no Open MPI in it"
            )
        return unchecked(
            "it has MPICH, whose PMI types cannot be listed"
            if "mpichversion" in programs
            else "no MPI is in it"
        )
    result = case.runner.run(["sh", at("checks/openmpi.sh")])
    lines = result.stdout.splitlines()
    case.mpi = tuple(line.removeprefix(_MPI_FACT) for line in lines if line.startswith(_MPI_FACT))
    missing = [kind for kind in expected if kind not in case.mpi]
    if not result.ok:
        return failed((result.stdout.strip() or "?").splitlines()[-1])
    if missing:
        return failed(f"it does not speak {', '.join(missing)}, which its manifest says")
    return passed(result.stdout.strip().splitlines()[-1])
