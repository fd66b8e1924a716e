"""Signatures of images: made and verified by Apptainer, with keys in PEM or of the PGP keyring.

Apptainer's signature covers every object of a group, descriptors and the header's id; ``verify
--all`` refuses a file to which anything was added afterwards, such as an overlay partition that
would be mounted on top.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
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
_FINGERPRINT = re.compile(r"(?:0x)?(?P<digits>[0-9A-Fa-f]{40})\Z")
_KEYRING = (
    "APPTAINER_KEYSDIR",
    "SINGULARITY_KEYSDIR",
    "APPTAINER_SYPGPDIR",
    "SINGULARITY_SYPGPDIR",
    "GPG_TTY",
    "TERM",
)
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


def sign(
    image: store.StoredImage, key: Path | None, pgp: int, progress: Progress, *, replace: bool
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
        NeedsInstallError, ForbiddenError, NoSpaceError, CommandFailedError: this machine cannot
            sign it.
    """
    path = Path(image.path).resolve()
    if not os.access(path.parent, os.W_OK):
        raise ForbiddenError(f"the directory of the image cannot be written to: {path.parent}")
    private, public = (None, "") if key is None else read_private(key)
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
            words = ["--keyidx", str(pgp)] if private is None else ["--key", "/dev/stdin"]
            done = _run_apptainer(["sign", *words, str(place.sif)], private, asks=private is None)
            if not done.ok:
                raise ConfigError(
                    "Apptainer could not sign with this key",
                    place=str(key or f"--pgp {pgp}"),
                    details=done.tail(3),
                    next_step="a key in PEM: RSA, ECDSA or Ed25519; of the PGP keyring: "
                    "apptainer key list --secret; apptainer key newpair; apptainer key import FILE",
                )
            made = _verify_pem(place.sif, public) if public else _verify_pgp(place.sif)
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
        key: the path of a public key in PEM, or the fingerprint of a PGP key (40 hexadecimal
            digits) that is in the user's keyring.

    Raises:
        SignatureError: it is not.
        ConfigError: the key cannot be read.
        ImageMissingError: the file is not an image.
        NeedsInstallError: Apptainer is not installed.
    """
    wanted = pgp_fingerprint(key)
    if wanted:
        return _verify_pgp(path, wanted)
    try:
        return _verify_pem(path, read_text(Path(key).expanduser()))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the public key cannot be read: {getattr(error, 'strerror', None) or error}",
            place=key,
            next_step="openssl pkey -in KEY.pem -pubout -out KEY.pub",
        ) from None


def _verify_pem(path: Path, public: str) -> Signature:
    """Verify a file with a public key. Raise ValueError if the text is not a public key."""
    digest = fingerprint(public)
    _run_verify(path, ["--key", "/dev/stdin"], text=public)
    return Signature(kind="pem", fingerprint=digest)


def _verify_pgp(path: Path, wanted: str = "") -> Signature:
    """Verify that one PGP key, or any if none is wanted, has signed all objects of a file."""
    answer = json.loads(_run_verify(path, ["--local"]))
    signers = [entry["Signer"] for entry in answer.get("SignerKeys") or ()]
    keys = [
        (signer["Fingerprint"].lower(), str(signer["Name"]))
        for signer in signers
        if signer["DataCheck"] and signer["KeyLocal"]
    ]
    objects = sum(descriptor.data_type != SIGNATURE for descriptor in read_descriptors(path))
    for digest, name in dict.fromkeys(keys):
        if wanted in ("", digest) and keys.count((digest, name)) >= objects:
            return Signature(kind="pgp", fingerprint=digest, signer=name)
    reason = f"signed by another key than {wanted}" if wanted else "not signed by one key"
    raise SignatureError(
        f"{path.name} is {reason}",
        place=str(path),
        details=[f"signed by {name} {digest}" for digest, name in dict.fromkeys(keys)],
    )


def _run_verify(path: Path, options: Sequence[str], text: str | None = None) -> str:
    """Run ``apptainer verify``; return its JSON if every object is signed and none has changed."""
    if not is_signed(path):
        raise SignatureError(
            f"{path.name} is not signed",
            place=str(path),
            next_step=f"toolkit image sign {path.name.removesuffix('.sif')} --key KEY.pem",
        )
    done = _run_apptainer(["verify", "--all", "--json", *options, str(path)], text)
    if done.ok:
        return done.stdout
    fatal = [line for line in done.stderr.splitlines() if line.startswith("FATAL")]
    reason = fatal[-1].removeprefix("FATAL:").strip() if fatal else ""
    meanings = (meaning for pattern, meaning in _MEANINGS if re.search(pattern, reason))
    raise SignatureError(
        f"{path.name} {next(meanings, 'could not be verified')}",
        place=str(path),
        details=(reason,) if reason else (),
    )


def _run_apptainer(
    arguments: Sequence[str], text: str | None = None, *, asks: bool = False, check: bool = False
) -> shell.Result:
    """Run Apptainer with the user's keyring and nothing else of the environment.

    It may ask the user for a passphrase if ``asks`` is set and there is a terminal.
    """
    environment = {name: os.environ[name] for name in _KEYRING if name in os.environ}
    environment |= {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(Path.home())}
    stdin = None if asks and sys.stdin.isatty() else subprocess.DEVNULL
    return shell.run(
        (shell.require_apptainer(), *arguments),
        env={**environment, "LC_ALL": "C.UTF-8"},
        stdin=stdin,
        input=text,
        timeout=_PATIENCE,
        check=check,
    )


def pgp_fingerprint(text: str) -> str | None:
    """Return a PGP key's fingerprint in its usual form; None if the text is not a fingerprint."""
    match = _FINGERPRINT.match(text.replace(" ", ""))
    return match["digits"].lower() if match else None


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
    """Return the fingerprint, or the path of the key's file.

    Raises:
        UntrustedError: the file was found by searching, and another user could have put it there.
    """
    if pgp_fingerprint(key):
        return key
    candidates = [directory / Path(key).expanduser() for directory in (cwd, folder, *cwd.parents)]
    path = next((path for path in candidates if path.is_file()), candidates[0])
    is_named = origin == "--signature-key" or (origin == "job.toml" and path.parent == folder)
    if path.is_file() and not is_named:
        require_trusted(path)
    return str(path)
