"""Signing images, and finding out who signed one: by Apptainer, with a key in PEM or one of the user's PGP keyring.

Apptainer's signature covers every object of a group, descriptors and the head's id; ``verify
--all`` refuses a file to which anything was added afterwards, such as an overlay partition that
would be mounted on top. What it does not do is read keys that OpenSSL guards with a passphrase. So
OpenSSL reads them: the passphrase goes there through a pipe, and the key from there to Apptainer in
a file that has no name and is only in memory. Neither is in an argument, an environment, a log, or
on a disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from toolkit.images.build.mutex import hold_image
from toolkit.images.build.workspace import require_space, workspace
from toolkit.images.sif.header import SIGNATURE
from toolkit.images.store import store
from toolkit.images.store.keys import fingerprint, is_guarded, pgp_fingerprint
from toolkit.images.store.sif_files import is_signed, normalize, partition_digest, read_descriptors
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Manifest, Signature
from toolkit.model.recipe import Space
from toolkit.progress import Progress

Ask = Callable[[str], str]  # the passphrase of what is named
_KEYRING = (
    "APPTAINER_KEYSDIR",
    "SINGULARITY_KEYSDIR",
    "APPTAINER_SYPGPDIR",
    "SINGULARITY_SYPGPDIR",
    "GPG_TTY",
    "TERM",
)
_PATIENCE = 3600.0  # seconds: it hashes the whole file


def sign(
    image: StoredImage,
    key: Path | None,
    pgp: int,
    ask: Ask,
    progress: Progress,
    *,
    replace: bool = False,
) -> Signature:
    """Sign an image; a signed copy takes its place, so that nobody ever finds half a signature.

    Args:
        key: a private key in PEM; None: the user's PGP keyring.
        pgp: the number of the key there.
        ask: for the passphrase of a guarded key.
        replace: drop the signatures that are there already.

    Raises:
        SignatureError: it is signed already, or what came out does not verify.
        ConfigError: the key cannot be read, or its passphrase is wrong.
        NeedsInstallError, ForbiddenError, NoSpaceError, BuildError: it cannot be done here.
    """
    path = Path(image.path).resolve()
    if is_signed(path) and not replace:
        raise SignatureError(
            f"{image.name} is signed already",
            place=str(path),
            next_step="toolkit image sign --replace ... to sign it anew",
        )
    if not os.access(path.parent, os.W_OK):
        raise ForbiddenError(f"the directory of the image cannot be written to: {path.parent}")
    private = None if key is None else read_private(key, ask)
    with hold_image(path.parent, image.name, wait=True, progress=progress):
        require_space(path.parent, Space(image=path.stat().st_size // 10**6 + 1, build=0))
        with workspace(path.parent) as place:
            shell.run(["cp", "--reflink=auto", "--", path, place.sif])
            digest, sif_id = _prepare(place.sif)
            made = (
                _sign_pem(place.sif, private) if private is not None else _sign_pgp(place.sif, pgp)
            )
            _publish(place.sif, path, image.manifest, digest, sif_id, made)
    return made


def _prepare(path: Path) -> tuple[str, str]:
    """Drop old signatures, and set the head to what depends on the contents only; the file system's hash and the SIF's id.

    The time is that of the image: so two builds by one lock are still one file but for their
    signatures.
    """
    for one in reversed(read_descriptors(path)):
        if one.data_type == SIGNATURE:
            shell.run([shell.require_apptainer(), "sif", "del", str(one.number), path])
    time = min(one.created for one in read_descriptors(path))
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
    """A private key, without its guard.

    Raises:
        ConfigError: it cannot be read, or the passphrase is wrong.
        NeedsInstallError: there is no OpenSSL.
    """
    try:
        guarded = is_guarded(key.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"the key cannot be used: {reason}",
            place=str(key),
            next_step="openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem",
        ) from None
    said, complaint = _openssl(["-in", str(key)], ask(str(key)) if guarded else "")
    if not said:
        cause = (
            "the passphrase is wrong, or the key is damaged" if guarded else "the key is damaged"
        )
        raise ConfigError(cause, place=str(key), details=complaint.splitlines()[-2:])
    return said


def _openssl(arguments: Sequence[str], passphrase: str, given: str = "") -> tuple[str, str]:
    """``openssl pkey``; what it says, and what it complains of."""
    program = shell.which("openssl")
    if program is None:
        raise NeedsInstallError(
            "OpenSSL is not installed here, which reads keys", next_step="apt-get install openssl"
        )
    reading, writing = os.pipe()
    os.write(writing, passphrase.encode() + b"\n")
    os.close(writing)
    try:
        done = _ended(
            shell.start(
                [program, "pkey", *arguments, "-passin", f"fd:{reading}"],
                stdin=subprocess.PIPE,
                pass_fds=(reading,),
            ),
            given,
        )
    finally:
        os.close(reading)
    return done.stdout if done.ok else "", done.stderr


def _in_memory(text: str, stack: ExitStack) -> int:
    """A file that is nowhere but in memory; its descriptor."""
    handle = os.memfd_create("toolkit")
    stack.callback(os.close, handle)
    os.write(handle, text.encode())
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _sign_pem(path: Path, private: str) -> Signature:
    public, complaint = _openssl(["-pubout"], "", private)
    if not public:
        raise ConfigError("the key has no public part", details=complaint.splitlines()[-2:])
    with ExitStack() as stack:
        handle = _in_memory(private, stack)
        done = _run(["sign", "--key", f"/proc/self/fd/{handle}", str(path)], pass_fds=(handle,))
    if done.returncode != 0:
        raise BuildError(
            "Apptainer could not sign with this key",
            details=done.stderr.splitlines()[-3:],
            next_step="it takes RSA, ECDSA and Ed25519",
        )
    found = _check_pem(path, public)
    return msgspec.structs.replace(found, when=_now())


def _sign_pgp(path: Path, number: int) -> Signature:
    done = _run(["sign", "--keyidx", str(number), str(path)], terminal=True)
    if done.returncode != 0:
        raise ConfigError(
            "Apptainer could not sign with this PGP key",
            place=f"--pgp {number}",
            details=done.stderr.splitlines()[-3:],
            next_step="apptainer key list --secret; apptainer key newpair; apptainer key import FILE",
        )
    signers = _pgp_signers(_verify(path, ["--local"]))
    if len(signers) != 1:
        raise SignatureError(
            "what came out is not signed by one key",
            place=str(path),
            details=tuple(map(str, signers)),
        )
    (found, name), *_ = signers
    return Signature(kind="pgp", fingerprint=found, signer=name, when=_now())


def verify(path: Path, key: str) -> Signature:
    """Whether this whole file is signed by this key, and unchanged since.

    Args:
        key: the path of a public key in PEM, or the fingerprint of a PGP key (40 hexadecimal digits) that is in the user's keyring.

    Raises:
        SignatureError: it is not.
        ConfigError: the key cannot be read.
        ImageMissingError: the file is no image.
        NeedsInstallError: there is no Apptainer.
    """
    wanted = pgp_fingerprint(key)
    if wanted is None:
        try:
            return _check_pem(path, Path(key).expanduser().read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"the public key cannot be read: {reason}",
                place=key,
                next_step="openssl pkey -in KEY.pem -pubout -out KEY.pub",
            ) from None
    _require_signed(path)
    said = _verify(path, ["--local"])
    data = sum(one.data_type != SIGNATURE for one in read_descriptors(path))
    for (found, name), objects in _pgp_signers(said).items():
        if found == wanted and objects >= data:
            return Signature(kind="pgp", fingerprint=found, signer=name)
    others = [f"{name} {found}" for found, name in _pgp_signers(said)]
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


def _check_pem(path: Path, public: str) -> Signature:
    """Raises ValueError where it is no public key."""
    found = fingerprint(public)
    _require_signed(path)
    with ExitStack() as stack:
        handle = _in_memory(public, stack)
        _verify(path, ["--key", f"/proc/self/fd/{handle}"], pass_fds=(handle,))
    return Signature(kind="pem", fingerprint=found)


def _verify(path: Path, options: Sequence[str], pass_fds: Sequence[int] = ()) -> str:
    """What Apptainer says, as JSON, when every object is signed and none has changed."""
    done = _run(["verify", "--all", "--json", *options, str(path)], pass_fds=pass_fds)
    if done.returncode == 0:
        return done.stdout
    said = (
        next((line for line in reversed(done.stderr.splitlines()) if line.startswith("FATAL")), "")
        .removeprefix("FATAL:")
        .strip()
    )
    raise SignatureError(
        f"{path.name} {_meaning(said)}", place=str(path), details=(said,) if said else ()
    )


def _meaning(said: str) -> str:
    """Apptainer's words in ours."""
    if "integrity compromised" in said:
        return "was changed after it was signed"
    if (
        "object not signed" in said
        or "not associated with" in said
        or "signature not found for object group" in said
    ):
        return "holds something that was put into it after it was signed"
    if (
        "envelope failed" in said
        or "signature object" in said
        or "unknown entity" in said
        or "key" in said.lower()
    ):
        return "is not signed by this key"
    return "could not be verified"


def _pgp_signers(said: str) -> dict[tuple[str, str], int]:
    """Fingerprint and name of each signer, and how many objects it signed."""
    signers: dict[tuple[str, str], int] = {}
    for entry in json.loads(said).get("SignerKeys") or ():
        signer = entry["Signer"]
        if signer["DataCheck"] and signer["KeyLocal"]:
            name = (signer["Fingerprint"].lower(), signer["Name"])
            signers[name] = signers.get(name, 0) + 1
    return signers


def _run(
    arguments: Sequence[str], *, pass_fds: Sequence[int] = (), terminal: bool = False
) -> shell.Result:
    """Apptainer, with the user's keyring and nothing else of the environment."""
    kept = {name: os.environ[name] for name in _KEYRING if name in os.environ}
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path.home()),
        "LC_ALL": "C.UTF-8",
        **kept,
    }
    argv = (shell.require_apptainer(), *arguments)
    stdin = None if terminal and sys.stdin.isatty() else subprocess.DEVNULL
    return _ended(shell.start(argv, env=environment, stdin=stdin, pass_fds=pass_fds))


def _ended(process: subprocess.Popen[str], given: str | None = None) -> shell.Result:
    """What a program said that has ended; it ends with us."""
    try:
        stdout, stderr = process.communicate(given, timeout=_PATIENCE)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return shell.Result(
        tuple(map(str, process.args)) if isinstance(process.args, list | tuple) else (),
        process.returncode,
        stdout,
        stderr,
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
