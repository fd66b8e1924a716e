"""Checks of an image by itself: its file, how it starts, and what the checks that run in it say."""

from __future__ import annotations

from functools import partial
from typing import Literal

from toolkit.checks import Check, Result, check, failed, passed, unchecked
from toolkit.images.store.store import whole_header
from toolkit.images.verify.case import ImageCase
from toolkit.units import counted, human_size

_WORD = "toolkit-is-in"


@check("manifest", "the image has a manifest")
def check_manifest(case: ImageCase) -> Result:
    """Check that the image has a manifest, and no older one beside it describes another file."""
    manifest = case.image.manifest
    if manifest is not None:
        builder = f" by {manifest.builder}" if manifest.builder else ""
        return passed(f"{manifest.name}, built {manifest.built}{builder}")
    beside = case.path.with_name(f"{case.path.name.removesuffix('.sif')}.json")
    if beside.exists():
        return failed(f"it has no manifest, and {beside.name} beside it describes another file")
    return unchecked("a foreign image: it has no manifest")


@check("size", "the file is as long as its header and its manifest say")
def check_size(case: ImageCase) -> Result:
    """Check the length of the file against its header and its manifest."""
    size = case.path.stat().st_size
    whole_header(case.path)
    manifest = case.image.manifest
    if manifest is None:
        return passed(f"{human_size(size)}, and nothing that its header names is cut off")
    if manifest.size != size:
        return failed(f"{size} bytes, and the manifest says {manifest.size}")
    return passed(f"{human_size(size)}, as its manifest says")


@check("labels", "the image's labels agree with its manifest")
def check_labels(case: ImageCase) -> Result:
    """Check that the image's labels agree with its manifest."""
    manifest, recipe = case.image.manifest, case.labels.get("toolkit.recipe", "")
    if manifest is None:
        labels = f"it says it is {recipe}" if recipe else f"{len(case.labels)} labels of others"
        return unchecked(f"no manifest to compare with; {labels}")
    if not recipe:
        return failed("the image names no recipe")
    if recipe != manifest.name:
        return failed(f"the image says it is {recipe}, its manifest says {manifest.name}")
    return passed(f"recipe {recipe}, written by toolkit {case.labels.get('toolkit.version', '?')}")


@check("signature", "who signed the image")
def check_signature(case: ImageCase) -> Result:
    """Check the signature with ``--key``; without it, only say who signed the image.

    Whether the image is unchanged since takes the key: `toolkit image verify-signature`.
    """
    manifest = case.image.manifest
    if case.key:
        from toolkit.images.store.signatures import verify

        # A SignatureError is the failure of this check.
        signature = verify(case.path, case.key)
        return passed(f"signed by {signature.signer or signature.fingerprint}, and unchanged since")
    if manifest and manifest.signatures:
        signers = ", ".join(each.signer or each.fingerprint[:16] for each in manifest.signatures)
        return unchecked(f"signed by {signers}; --key tells whether it is unchanged")
    return unchecked("no signature is known")


@check("entrypoint", "starting the image prints nothing")
def check_entrypoint(case: ImageCase) -> Result:
    """Check that starting the image prints nothing: what a rank prints is the rank's own.

    A foreign image is started as jobs start it, by ``exec``: what its own runscript would start is
    not known.
    """
    ours = case.image.manifest is not None and case.image.manifest.runscript
    actions: tuple[Literal["exec", "run"], ...] = ("exec", "run") if ours else ("exec",)
    for action in actions:
        result = case.runner.run(["/bin/sh", "-c", f"echo {_WORD}"], action=action, timeout=60)
        lines = [*result.stdout.splitlines(), *result.stderr.splitlines()]
        own = [line.strip() for line in lines if line.strip() and line != _WORD]
        if not result.ok or _WORD not in lines:
            reason = own[-1] if own else f"exit code {result.returncode}"
            return failed(f"by {action}: a command does not run in it ({reason})")
        if own:
            text = f"it prints {counted(len(own), 'line')} of its own, first: {own[0]}"
            return failed(f"by {action}: {text}")
    if ours:
        return passed("prints nothing of its own")
    return passed(
        "prints nothing of its own by exec; its runscript is not used by jobs and was not run"
    )


def _report(name: str, case: ImageCase) -> Result:
    """Return what a check in the image says, or why it was not made there."""
    result, lacks = case.results.find(name), case.lacks(name)
    if result and result.outcome == "failed" and lacks and name.startswith("ranks-"):
        result = None  # it could not pass
    return result or unchecked(lacks or "it is not among the image's checks")


@check("imports", "every module that the image should have can be imported")
def check_imports(case: ImageCase) -> Result:
    """Check that all modules can be imported, in the versions that the manifest lists."""
    report = _report("imports", case)
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
    report = _report("openmpi", case)
    expected = case.image.manifest.mpi if case.image.manifest else ()
    missing = [kind for kind in expected if kind not in case.results.mpi]
    if report.outcome != "failed" and missing:
        return failed(f"it does not speak {', '.join(missing)}, which its manifest says")
    return report


def _reported(name: str, about: str) -> Check:
    return Check(name, about, partial(_report, name))


USUAL = (
    check_imports,
    _reported("user-site", "packages in a user's home do not hide the image's"),
    check_openmpi,
    _reported("horovod-build", "Horovod is built for the frameworks of the image"),
    _reported("ranks-mpi", "two ranks on this machine sum by MPI"),
    _reported("ranks-gloo", "two ranks on this machine sum by Gloo"),
    _reported("ranks-nccl", "two ranks on this machine sum by NCCL"),
)
