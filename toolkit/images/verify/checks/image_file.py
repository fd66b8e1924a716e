"""Checks of the image file, and of what is written about it: manifest, labels, signature."""

from __future__ import annotations

from toolkit.checks import Result, check, failed, passed, unchecked
from toolkit.images.store.store import whole_header
from toolkit.images.verify.case import ImageCase
from toolkit.units import human_size


@check("manifest", "the image has a manifest", at_build=True)
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


@check("size", "the file is as long as its header and its manifest say", at_build=True)
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


@check("labels", "the image's labels agree with its manifest", at_build=True)
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


@check("signature", "who signed the image", at_build=True)
def check_signature(case: ImageCase) -> Result:
    """Check the signature with ``--key``; without it, only say who signed the image.

    Whether the image is unchanged since takes the key: `toolkit image verify-signature`.
    """
    manifest = case.image.manifest
    if case.options.key:
        from toolkit.images.store.signatures import verify

        # A SignatureError is the failure of this check.
        signature = verify(case.path, case.options.key)
        return passed(f"signed by {signature.signer or signature.fingerprint}, and unchanged since")
    if manifest and manifest.signatures:
        signers = ", ".join(each.signer or each.fingerprint[:16] for each in manifest.signatures)
        return unchecked(f"signed by {signers}; --key tells whether it is unchanged")
    return unchecked("no signature is known")
