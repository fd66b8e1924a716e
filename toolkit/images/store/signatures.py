"""Verification of the signatures of images by Apptainer, and the keys that it is given.

Apptainer's signature covers every object of a group, descriptors and the header's id; ``verify
--all`` refuses a file to which anything was added afterwards, such as an overlay partition that
would be mounted on top.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from toolkit import shell
from toolkit.errors import ConfigError, SignatureError, ToolkitError, UsageError
from toolkit.files import read_text
from toolkit.images.sif.header import SIGNATURE
from toolkit.images.store.sif_files import is_signed, read_descriptors
from toolkit.model.image import Signature
from toolkit.model.job import Job
from toolkit.trust import require_trusted

_BLOCK = re.compile(
    r"-----BEGIN (?P<kind>[A-Z0-9 ]+)-----\n(?P<body>.*?)-----END (?P=kind)-----", re.DOTALL
)
_FINGERPRINT = re.compile(r"(?:0x)?(?P<digits>[0-9A-Fa-f]{40})\Z")
PUBLIC = "PUBLIC KEY"
_KEYRING = (
    "APPTAINER_KEYSDIR",
    "SINGULARITY_KEYSDIR",
    "APPTAINER_SYPGPDIR",
    "SINGULARITY_SYPGPDIR",
    "GPG_TTY",
    "TERM",
)
PATIENCE = 3600.0  # seconds: it hashes the whole file
# What Apptainer's messages mean; the first that fits counts.
_MEANINGS = (
    ("integrity compromised", "was changed after it was signed"),
    (
        "object not signed|not associated with|signature not found for object group",
        "holds something that was put into it after it was signed",
    ),
    ("envelope failed|signature object|unknown entity|(?i:key)", "is not signed by this key"),
)


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
    if wanted is None:
        try:
            return check_pem(path, read_text(Path(key).expanduser()))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"the public key cannot be read: {reason}",
                place=key,
                next_step="openssl pkey -in KEY.pem -pubout -out KEY.pub",
            ) from None
    _require_signed(path)
    signers = pgp_signers(run_verify(path, ["--local"]))
    data = sum(descriptor.data_type != SIGNATURE for descriptor in read_descriptors(path))
    for (signer_key, name), objects in signers.items():
        if signer_key == wanted and objects >= data:
            return Signature(kind="pgp", fingerprint=signer_key, signer=name)
    others = [f"{name} {signer_key}" for signer_key, name in signers]
    raise SignatureError(
        f"{path.name} is signed by another key than {wanted}", place=str(path), details=others
    )


def _require_signed(path: Path) -> None:
    if not is_signed(path):
        raise SignatureError(
            f"{path.name} is not signed",
            place=str(path),
            next_step=f"toolkit image sign {path.name.removesuffix('.sif')} --key KEY.pem",
        )


def check_pem(path: Path, public: str) -> Signature:
    """Verify a file with a public key. Raise ValueError if the text is not a public key."""
    digest = fingerprint(public)
    _require_signed(path)
    run_verify(path, ["--key", "/dev/stdin"], text=public)
    return Signature(kind="pem", fingerprint=digest)


def run_verify(path: Path, options: Sequence[str], text: str | None = None) -> str:
    """Run ``apptainer verify``; return its JSON if every object is signed and none has changed."""
    done = run_apptainer(["verify", "--all", "--json", *options, str(path)], text=text)
    if done.ok:
        return done.stdout
    fatal = [line for line in done.stderr.splitlines() if line.startswith("FATAL")]
    reason = fatal[-1].removeprefix("FATAL:").strip() if fatal else ""
    meaning = next(
        (meaning for pattern, meaning in _MEANINGS if re.search(pattern, reason)),
        "could not be verified",
    )
    raise SignatureError(
        f"{path.name} {meaning}", place=str(path), details=(reason,) if reason else ()
    )


def pgp_signers(answer: str) -> dict[tuple[str, str], int]:
    """Return fingerprint and name of each signer, and how many objects it signed."""
    signers: dict[tuple[str, str], int] = {}
    for entry in json.loads(answer).get("SignerKeys") or ():
        signer = entry["Signer"]
        if signer["DataCheck"] and signer["KeyLocal"]:
            name = (signer["Fingerprint"].lower(), signer["Name"])
            signers[name] = signers.get(name, 0) + 1
    return signers


def run_apptainer(
    arguments: Sequence[str], *, text: str | None = None, terminal: bool = False
) -> shell.Result:
    """Run Apptainer with the user's keyring and nothing else of the environment.

    Args:
        arguments: its arguments.
        text: its standard input.
        terminal: let it ask the user for a passphrase.
    """
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path.home()),
        "LC_ALL": "C.UTF-8",
        **{name: os.environ[name] for name in _KEYRING if name in os.environ},
    }
    argv = (shell.require_apptainer(), *arguments)
    stdin = None if terminal and sys.stdin.isatty() else subprocess.DEVNULL
    return shell.run(argv, env=environment, stdin=stdin, input=text, timeout=PATIENCE, check=False)


def pgp_fingerprint(text: str) -> str | None:
    """Return a PGP key's fingerprint in its usual form; None if the text is not a fingerprint."""
    match = _FINGERPRINT.match(text.replace(" ", ""))
    return match["digits"].lower() if match else None


def find_block(text: str) -> tuple[str, str]:
    """Return the kind and the body of the first block of a text in PEM; empty if it has none."""
    block = _BLOCK.search(text.replace("\r\n", "\n"))
    return (block["kind"], block["body"]) if block else ("", "")


def fingerprint(public: str) -> str:
    """Return the SHA-256 of a public key in DER.

    It is the same as that of ``openssl pkey -pubin -outform DER | sha256sum``.

    Raises:
        ValueError: the text is not a public key in PEM.
    """
    kind, body = find_block(public)
    if kind != PUBLIC:
        raise ValueError(f"it holds no {PUBLIC}" + (f", but a {kind}" if kind else ""))
    try:
        return hashlib.sha256(base64.b64decode("".join(body.split()), validate=True)).hexdigest()
    except binascii.Error:
        raise ValueError(f"its {PUBLIC} is damaged") from None


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
