"""Checks of what is in the image: how it starts, and what the checks that run in it say."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

from toolkit.checks import Check, Result, check, failed, passed, unchecked
from toolkit.images.verify.case import ImageCase
from toolkit.images.verify.checks.ranks import lacks_gloo, lacks_mpi, lacks_nccl
from toolkit.units import counted

_WORD = "toolkit-is-in"


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


def _report(name: str, lacks: Callable[[ImageCase], str], case: ImageCase) -> Result:
    """Return what a check in the image says, or why it was not made there."""
    result = case.results.find(name)
    reason = (case.no_python if name != "openmpi" else "") or lacks(case)
    if result is None or (reason and not result.passed and name.startswith("ranks-")):
        return unchecked(reason or "it is not among the image's checks")
    return (passed if result.passed else failed)(result.detail)


@check("imports", "every module that the image should have can be imported")
def check_imports(case: ImageCase) -> Result:
    """Check that all modules can be imported, in the versions that the manifest lists."""
    lacks = "no framework was found, and no manifest names one"
    report = _report("imports", lambda _: "" if case.contents.modules else lacks, case)
    if report.outcome == "failed":
        return report
    imported = case.results.frameworks
    wrong = [
        f"{name} is {imported.get(name, 'not in it')}, its manifest says {version}"
        for name, version in case.expected.items()
        if imported.get(name, "" if name not in case.contents.modules else version) != version
    ]
    return failed("; ".join(wrong)) if wrong else report


@check("openmpi", "Slurm can start the image's MPI")
def check_openmpi(case: ImageCase) -> Result:
    """Check that Open MPI supports the PMI types that the manifest lists."""
    report = _report("openmpi", _lacks_openmpi, case)
    expected = case.image.manifest.mpi if case.image.manifest else ()
    missing = [kind for kind in expected if kind not in case.results.mpi]
    if report.outcome != "failed" and missing:
        return failed(f"it does not speak {', '.join(missing)}, which its manifest says")
    return report


def _lacks_openmpi(case: ImageCase) -> str:
    if "ompi_info" in case.contents.programs or case.results.mpi:
        return ""
    is_mpich = "mpichversion" in case.contents.programs
    return "it has MPICH, whose PMI types cannot be listed" if is_mpich else "no MPI is in it"


@check("horovod-build", "Horovod is built for the frameworks of the image")
def check_horovod_build(case: ImageCase) -> Result:
    """Check that the witnesses of Horovod's build agree."""
    case.controllers = tuple(case.results.controllers)
    lacks = "no Horovod is in it"
    return _report("horovod-build", lambda _: "" if case.has("horovod") else lacks, case)


def _lacks_gpus(case: ImageCase) -> str:
    if (reason := lacks_nccl(case)) or case.gpus > 1:
        return reason
    return (
        "this machine has one GPU; two ranks of NCCL need one each"
        if case.gpus
        else "this machine has no GPU"
    )


def _report_of(name: str, about: str, lacks: Callable[[ImageCase], str]) -> Check:
    return Check(name, about, partial(_report, name, lacks))


USUAL = (
    check_imports,
    _report_of("user-site", "packages in a user's home do not hide the image's", lambda _: ""),
    check_openmpi,
    check_horovod_build,
    _report_of("ranks-mpi", "two ranks on this machine sum by MPI", lacks_mpi),
    _report_of("ranks-gloo", "two ranks on this machine sum by Gloo", lacks_gloo),
    _report_of("ranks-nccl", "two ranks on this machine sum by NCCL", _lacks_gpus),
)
