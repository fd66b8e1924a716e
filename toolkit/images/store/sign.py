"""Signatures of images, made by Apptainer with a key in PEM or one of the user's PGP keyring."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from toolkit import shell
from toolkit.errors import (
    BuildError,
    ConfigError,
    ForbiddenError,
    NeedsInstallError,
    SignatureError,
)
from toolkit.files import read_text
from toolkit.images.host.mutex import hold_image
from toolkit.images.host.workspace import require_space, workspace
from toolkit.images.recipe.recipe import Space
from toolkit.images.sif.header import SIGNATURE
from toolkit.images.store import store
from toolkit.images.store.sif_files import is_signed, normalize, read_descriptors
from toolkit.images.store.signatures import (
    PATIENCE,
    check_pem,
    find_block,
    pgp_signers,
    run_apptainer,
    run_verify,
)
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Signature
from toolkit.shell import Progress


def sign(
    image: StoredImage, key: Path | None, pgp: int, progress: Progress, *, replace: bool = False
) -> Signature:
    """Sign an image; a signed copy takes its place, so that no reader gets half a signature.

    Args:
        image: the image.
        key: a private key in PEM; None: the user's PGP keyring.
        pgp: the number of the key there.
        progress: reports a wait for the image's lock.
        replace: drop the signatures that are there already.

    Raises:
        SignatureError: the image is signed already, or the result does not verify.
        ConfigError: the key cannot be read, or it is guarded by a passphrase.
        NeedsInstallError, ForbiddenError, NoSpaceError, BuildError: this machine cannot sign it.
    """
    path = Path(image.path).resolve()
    _require_unsigned(path, replace=replace)
    if not os.access(path.parent, os.W_OK):
        raise ForbiddenError(f"the directory of the image cannot be written to: {path.parent}")
    private = None if key is None else read_private(key)
    with hold_image(path, "signed", wait=progress):
        image = store.find(str(path))  # as it is now
        _require_unsigned(path, replace=replace)
        require_space(path.parent, Space(image=path.stat().st_size // 10**6 + 1, build=0))
        with workspace(path.parent) as place:
            shell.run(["cp", "--reflink=auto", "--", path, place.sif])
            sif_id = _prepare(place.sif)
            made = (
                _sign_pem(place.sif, private) if private is not None else _sign_pgp(place.sif, pgp)
            )
            place.sif.chmod(path.stat().st_mode & 0o777)
            facts = {"sif_id": sif_id, "size": place.sif.stat().st_size, "signatures": (made,)}
            note = msgspec.structs.replace(image.manifest, **facts) if image.manifest else None
            store.publish(place.sif, path.parent, path.name.removesuffix(".sif"), note)
    return made


def _require_unsigned(path: Path, *, replace: bool) -> None:
    if is_signed(path) and not replace:
        raise SignatureError(
            f"{path.name.removesuffix('.sif')} is signed already",
            place=str(path),
            next_step="toolkit image sign --replace ... to sign it again",
        )


def _prepare(path: Path) -> str:
    """Drop old signatures and normalize the header; return the SIF's id.

    The time in the header is that of the image: so two builds by one lock are still one file but
    for their signatures.
    """
    for descriptor in reversed(read_descriptors(path)):
        if descriptor.data_type == SIGNATURE:
            done = run_apptainer(["sif", "del", str(descriptor.number), str(path)])
            if not done.ok:
                raise BuildError(
                    "the old signature cannot be removed", place=str(path), details=done.tail(3)
                )
    return normalize(path, min(descriptor.created for descriptor in read_descriptors(path)))


def read_private(key: Path) -> str:
    """Read a private key.

    Raises:
        ConfigError: it cannot be read, or it is guarded by a passphrase.
    """
    reason, step = "", "openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem"
    try:
        text = read_text(key)
        kind, body = find_block(text)
        if not kind.endswith("PRIVATE KEY"):
            reason = "it holds no private key" + (f", but a {kind}" if kind else "")
        elif "COSIGN" in kind or "SIGSTORE" in kind:
            reason = "it is a key of cosign's, which Apptainer does not read"
        elif "ENCRYPTED" in kind or "Proc-Type: 4,ENCRYPTED" in body:
            reason = "it is guarded by a passphrase, with which Apptainer does not read it"
            step = "umask 077; openssl pkey -in KEY -out PLAIN; remove PLAIN after signing"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise ConfigError(f"the key cannot be used: {reason}", place=str(key), next_step=step)
    return text


def _sign_pem(path: Path, private: str) -> Signature:
    program = shell.which("openssl")
    if program is None:
        raise NeedsInstallError(
            "OpenSSL is not installed here, which reads keys", next_step="apt-get install openssl"
        )
    # Through pipes: the key is in no argument, and on no other disk than the user's own.
    public = shell.run([program, "pkey", "-pubout"], input=private, timeout=PATIENCE, check=False)
    if not public.ok:
        raise ConfigError("the key is damaged", details=public.tail(2))
    done = run_apptainer(["sign", "--key", "/dev/stdin", str(path)], text=private)
    if not done.ok:
        raise BuildError(
            "Apptainer could not sign with this key",
            details=done.tail(3),
            next_step="it takes RSA, ECDSA and Ed25519",
        )
    return msgspec.structs.replace(check_pem(path, public.stdout), when=_now())


def _sign_pgp(path: Path, number: int) -> Signature:
    done = run_apptainer(["sign", "--keyidx", str(number), str(path)], terminal=True)
    if not done.ok:
        raise ConfigError(
            "Apptainer could not sign with this PGP key",
            place=f"--pgp {number}",
            details=done.tail(3),
            next_step="apptainer key list --secret; apptainer key newpair; "
            "apptainer key import FILE",
        )
    signers = pgp_signers(run_verify(path, ["--local"]))
    if len(signers) != 1:
        raise SignatureError(
            "the result is not signed by one key",
            place=str(path),
            details=tuple(map(str, signers)),
        )
    (fingerprint, name), *_ = signers
    return Signature(kind="pgp", fingerprint=fingerprint, signer=name, when=_now())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
