"""Signatures of images, made by Apptainer with a key in PEM or one of the user's PGP keyring.

Apptainer does not read keys that OpenSSL guards with a passphrase. So OpenSSL reads them: the
passphrase goes there through a pipe, and the key from there to Apptainer in a file that has no name
and is only in memory. Neither is in an argument, an environment, a log, or on a disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
from toolkit.images.store.sif_files import is_signed, normalize, partition_digest, read_descriptors
from toolkit.images.store.signatures import (
    PATIENCE,
    check_pem,
    is_guarded,
    memory_file,
    pgp_signers,
    run_apptainer,
    run_verify,
)
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Manifest, Signature
from toolkit.shell import Progress

Ask = Callable[[str], str]  # returns the passphrase of the named key


def sign(
    image: StoredImage,
    key: Path | None,
    pgp: int,
    ask: Ask,
    progress: Progress,
    *,
    replace: bool = False,
) -> Signature:
    """Sign an image; a signed copy takes its place, so that no reader gets half a signature.

    Args:
        image: the image.
        key: a private key in PEM; None: the user's PGP keyring.
        pgp: the number of the key there.
        ask: for the passphrase of a guarded key.
        progress: reports a wait for the image's lock.
        replace: drop the signatures that are there already.

    Raises:
        SignatureError: the image is signed already, or the result does not verify.
        ConfigError: the key cannot be read, or its passphrase is wrong.
        NeedsInstallError, ForbiddenError, NoSpaceError, BuildError: this machine cannot sign it.
    """
    path = Path(image.path).resolve()
    _require_unsigned(path, replace=replace)
    if not os.access(path.parent, os.W_OK):
        raise ForbiddenError(f"the directory of the image cannot be written to: {path.parent}")
    private = None if key is None else read_private(key, ask)
    with hold_image(path, "signed", wait=progress):
        image = store.find(str(path))  # as it is now
        _require_unsigned(path, replace=replace)
        require_space(path.parent, Space(image=path.stat().st_size // 10**6 + 1, build=0))
        with workspace(path.parent) as place:
            shell.run(["cp", "--reflink=auto", "--", path, place.sif])
            digest, sif_id = _prepare(place.sif)
            made = (
                _sign_pem(place.sif, private) if private is not None else _sign_pgp(place.sif, pgp)
            )
            _publish(place.sif, path, image.manifest, digest, sif_id, made)
    return made


def _require_unsigned(path: Path, *, replace: bool) -> None:
    if is_signed(path) and not replace:
        raise SignatureError(
            f"{path.name.removesuffix('.sif')} is signed already",
            place=str(path),
            next_step="toolkit image sign --replace ... to sign it again",
        )


def _prepare(path: Path) -> tuple[str, str]:
    """Drop old signatures and normalize the header; return the file system's hash and the SIF's id.

    The time in the header is that of the image: so two builds by one lock are still one file but
    for their signatures.
    """
    for descriptor in reversed(read_descriptors(path)):
        if descriptor.data_type == SIGNATURE:
            shell.run([shell.require_apptainer(), "sif", "del", str(descriptor.number), path])
    time = min(descriptor.created for descriptor in read_descriptors(path))
    return partition_digest(path), normalize(path, time)


def _publish(
    signed: Path,
    path: Path,
    manifest: Manifest | None,
    digest: str,
    sif_id: str,
    signature: Signature,
) -> None:
    signed.chmod(path.stat().st_mode & 0o777)
    if manifest is None:
        signed.replace(path)
        return
    facts = {
        "sif_id": sif_id,
        "size": signed.stat().st_size,
        "partition": digest,
        "signatures": (signature,),
    }
    store.publish(
        signed,
        msgspec.structs.replace(manifest, **facts),
        path.parent,
        name=path.name.removesuffix(".sif"),
    )


def read_private(key: Path, ask: Ask) -> str:
    """Read a private key, and remove its passphrase.

    Raises:
        ConfigError: it cannot be read, or the passphrase is wrong.
        NeedsInstallError: OpenSSL is not installed.
    """
    try:
        guarded = is_guarded(read_text(key))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"the key cannot be used: {reason}",
            place=str(key),
            next_step="openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem",
        ) from None
    private, complaint = _openssl(["-in", str(key)], ask(str(key)) if guarded else "")
    if not private:
        cause = (
            "the passphrase is wrong, or the key is damaged" if guarded else "the key is damaged"
        )
        raise ConfigError(cause, place=str(key), details=complaint.splitlines()[-2:])
    return private


def _openssl(arguments: Sequence[str], passphrase: str, given: str = "") -> tuple[str, str]:
    """Run ``openssl pkey``; return its output, empty if it fails, and its error output."""
    program = shell.which("openssl")
    if program is None:
        raise NeedsInstallError(
            "OpenSSL is not installed here, which reads keys", next_step="apt-get install openssl"
        )
    reading, writing = os.pipe()
    os.write(writing, passphrase.encode() + b"\n")
    os.close(writing)
    try:
        command = [program, "pkey", *arguments, "-passin", f"fd:{reading}"]
        done = shell.run(command, input=given, pass_fds=(reading,), timeout=PATIENCE, check=False)
    finally:
        os.close(reading)
    return done.stdout if done.ok else "", done.stderr


def _sign_pem(path: Path, private: str) -> Signature:
    public, complaint = _openssl(["-pubout"], "", private)
    if not public:
        raise ConfigError("the key has no public part", details=complaint.splitlines()[-2:])
    with ExitStack() as stack:
        handle = memory_file(private.encode(), stack)
        arguments = ["sign", "--key", f"/proc/self/fd/{handle}", str(path)]
        done = run_apptainer(arguments, pass_fds=(handle,))
    if done.returncode != 0:
        raise BuildError(
            "Apptainer could not sign with this key",
            details=done.stderr.splitlines()[-3:],
            next_step="it takes RSA, ECDSA and Ed25519",
        )
    return msgspec.structs.replace(check_pem(path, public), when=_now())


def _sign_pgp(path: Path, number: int) -> Signature:
    done = run_apptainer(["sign", "--keyidx", str(number), str(path)], terminal=True)
    if done.returncode != 0:
        raise ConfigError(
            "Apptainer could not sign with this PGP key",
            place=f"--pgp {number}",
            details=done.stderr.splitlines()[-3:],
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
