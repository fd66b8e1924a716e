"""Signatures of images: made and verified by Apptainer, with keys in PEM.

Apptainer's signature covers every object of a group, descriptors and the header's id; ``verify
--all`` refuses a file to which anything was added afterwards, such as an overlay partition that
would be mounted on top.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from msgspec.structs import replace as with_facts

from toolkit import shell
from toolkit.errors import (
    ConfigError,
    ForbiddenError,
    SignatureError,
    ToolkitError,
    UsageError,
)
from toolkit.files import read_text
from toolkit.images.host.mutex import hold_image
from toolkit.images.host.workspace import require_space, workspace
from toolkit.images.recipe.recipe import Space
from toolkit.images.sif.header import SIGNATURE
from toolkit.images.store import store
from toolkit.images.store.sif_files import normalize, read_descriptors
from toolkit.model.image import Signature
from toolkit.model.job import Job
from toolkit.shell import Progress
from toolkit.trust import require_trusted

_PUBLIC = re.compile(r"-----BEGIN PUBLIC KEY-----\n(.*?)-----END PUBLIC KEY-----", re.DOTALL)
_PATIENCE = 3600.0  # seconds: it hashes the whole file
# What Apptainer's messages mean; the first that fits counts.
_MEANINGS = (
    ("integrity compromised", "was changed after it was signed"),
    (
        "object not signed|not associated with|signature not found for object group",
        "holds something that was put into it after it was signed",
    ),
    ("envelope failed|signature object|unknown entity|(?i:key)", "is not signed by this key"),
)


def sign(image: store.StoredImage, key: Path, progress: Progress, *, replace: bool) -> Signature:
    """Sign an image; a signed copy takes its place, so that no reader gets half a signature.

    Args:
        image: the image.
        key: a private key in PEM.
        progress: reports a wait for the image's lock.
        replace: drop the signatures that are there already.

    Raises:
        SignatureError: the image is signed already, or the result does not verify.
        ConfigError: the key cannot be read, or it is guarded by a passphrase.
        NeedsInstallError, ForbiddenError, NoSpaceError, CommandFailedError: this machine cannot
            sign it.
    """
    path = Path(image.path).resolve()
    if not os.access(path.parent, os.W_OK):
        raise ForbiddenError(f"the directory of the image cannot be written to: {path.parent}")
    private, public = read_private(key)
    with hold_image(path, "signed", wait=progress):
        image = store.find(str(path))  # as it is now
        if is_signed(path) and not replace:
            raise SignatureError(
                f"{image.name} is signed already",
                place=str(path),
                next_step="toolkit image sign --replace ... to sign it again",
            )
        require_space(path.parent, Space(image=path.stat().st_size // 10**6 + 1, build=0))
        with workspace(path.parent) as place:
            shell.run(["cp", "--reflink=auto", "--", path, place.sif])
            sif_id = _remove_signatures(place.sif)
            done = _run_apptainer(["sign", "--key", "/dev/stdin", str(place.sif)], private)
            if not done.ok:
                raise ConfigError(
                    "Apptainer could not sign with this key",
                    place=str(key),
                    details=done.tail(3),
                    next_step="a key in PEM: RSA, ECDSA or Ed25519",
                )
            made = _verify(place.sif, public)
            made = with_facts(made, when=datetime.now(timezone.utc).isoformat(timespec="seconds"))
            place.sif.chmod(path.stat().st_mode & 0o777)
            facts = {"sif_id": sif_id, "size": place.sif.stat().st_size, "signatures": (made,)}
            note = with_facts(image.manifest, **facts) if image.manifest else None
            store.publish(place.sif, path.parent, image.name, note)
    return made


def is_signed(path: Path) -> bool:
    """Return whether a SIF has any signature; neither signer nor signature are checked."""
    return any(descriptor.data_type == SIGNATURE for descriptor in read_descriptors(path))


def _remove_signatures(path: Path) -> str:
    """Drop old signatures and normalize the header; return the SIF's id.

    The time in the header is that of the image: so two builds by one lock are still one file but
    for their signatures.
    """
    for descriptor in reversed(read_descriptors(path)):
        if descriptor.data_type == SIGNATURE:
            _run_apptainer(["sif", "del", str(descriptor.number), str(path)], check=True)
    return normalize(path, min(descriptor.created for descriptor in read_descriptors(path)))


def read_private(key: Path) -> tuple[str, str]:
    """Return a private key and its public part; OpenSSL reads it, through pipes.

    Raises:
        ConfigError: it cannot be read, is no private key, or is guarded by a passphrase.
        NeedsInstallError: OpenSSL is not installed.
    """
    try:
        private = read_text(key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"the key cannot be read: {reason}", place=str(key)) from None
    words = ["openssl", "pkey", "-pubout", "-passin", "pass:"]
    done = shell.run(words, input=private, timeout=_PATIENCE, check=False)
    if not done.ok:
        raise ConfigError(
            "the key cannot be used: it is no private key in PEM, or guarded by a passphrase",
            place=str(key),
            details=done.tail(2),
            next_step="umask 077; openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem; "
            "of a key with a passphrase: openssl pkey -in KEY -out PLAIN, and remove PLAIN after "
            "signing",
        )
    return private, done.stdout


def verify(path: Path, key: str) -> Signature:
    """Verify that this whole file is signed by this key, and unchanged since.

    Args:
        path: the SIF.
        key: the path of a public key in PEM.

    Raises:
        SignatureError: it is not.
        ConfigError: the key cannot be read.
        ImageMissingError: the file is not an image.
        NeedsInstallError: Apptainer is not installed.
    """
    try:
        return _verify(path, read_text(Path(key).expanduser()))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the public key cannot be read: {getattr(error, 'strerror', None) or error}",
            place=key,
            next_step="openssl pkey -in KEY.pem -pubout -out KEY.pub",
        ) from None


def _verify(path: Path, public: str) -> Signature:
    """Verify a file with a public key. Raise ValueError if the text is not a public key."""
    digest = fingerprint(public)
    if not is_signed(path):
        raise SignatureError(
            f"{path.name} is not signed",
            place=str(path),
            next_step=f"toolkit image sign {path.name.removesuffix('.sif')} --key KEY.pem",
        )
    done = _run_apptainer(["verify", "--all", "--key", "/dev/stdin", str(path)], public)
    if done.ok:
        return Signature(kind="pem", fingerprint=digest)
    fatal = [line for line in done.stderr.splitlines() if line.startswith("FATAL")]
    reason = fatal[-1].removeprefix("FATAL:").strip() if fatal else ""
    meanings = (meaning for pattern, meaning in _MEANINGS if re.search(pattern, reason))
    raise SignatureError(
        f"{path.name} {next(meanings, 'could not be verified')}",
        place=str(path),
        details=(reason,) if reason else (),
    )


def _run_apptainer(
    arguments: Sequence[str], text: str = "", *, check: bool = False
) -> shell.Result:
    """Run Apptainer without the user's settings."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home())}
    return shell.run(
        (shell.require_apptainer(), *arguments),
        env={**environment, "LC_ALL": "C.UTF-8"},
        input=text,
        timeout=_PATIENCE,
        check=check,
    )


def fingerprint(public: str) -> str:
    """Return the SHA-256 of a public key in DER.

    It is the same as that of ``openssl pkey -pubin -outform DER | sha256sum``.

    Raises:
        ValueError: the text is not a public key in PEM.
    """
    match = _PUBLIC.search(public.replace("\r\n", "\n"))
    if match is None:
        raise ValueError("it holds no PUBLIC KEY")
    return hashlib.sha256(base64.b64decode("".join(match[1].split()), validate=True)).hexdigest()


def signature(job: Job, image: str, cwd: Path, folder: Path, origin: str) -> list[ToolkitError]:
    """Return what is wrong with an image's signature; nothing where none is demanded.

    Args:
        job: says whether a signature is demanded, and by which key.
        image: path of the SIF; all of it is read.
        cwd: current working directory. A key is searched there, in ``folder`` and in the parents.
        folder: directory of the script.
        origin: of the key: a file that neither the command line nor the job names must be trusted.
    """
    if not job.require_signed:
        return []
    if not job.signature_key:
        return [
            UsageError(
                "a signed image is demanded, but no key is named",
                place="require_signed",
                next_step="--signature-key FILE",
            ),
        ]
    try:
        verify(Path(image), _key(job.signature_key, cwd, folder, origin))
    except ToolkitError as error:
        error.place = (
            "--image" if isinstance(error, SignatureError) else error.place or "--signature-key"
        )
        return [error]
    return []


def _key(key: str, cwd: Path, folder: Path, origin: str) -> str:
    """Return the path of the key's file.

    Raises:
        UntrustedError: the file was found by searching, and another user could have put it there.
    """
    candidates = [directory / Path(key).expanduser() for directory in (cwd, folder, *cwd.parents)]
    path = next((path for path in candidates if path.is_file()), candidates[0])
    is_named = origin == "--signature-key" or (origin == "job.toml" and path.parent == folder)
    if path.is_file() and not is_named:
        require_trusted(path)
    return str(path)
