"""Sign the list of a packed workshop's files with a key in PEM, and verify it, by OpenSSL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from toolkit import shell
from toolkit.errors import ConfigError, NeedsInstallError, SignatureError
from toolkit.images.store.sign import Ask, read_private
from toolkit.images.store.signatures import memory_file
from toolkit.workshops.archive import Verify

PATIENCE = 60.0  # seconds
_PATH = "/proc/self/fd/{}"


def sign(data: bytes, key: Path, ask: Ask) -> bytes:
    """Return the signature of data with a private key.

    Raises:
        ConfigError: the key cannot be used.
        NeedsInstallError: OpenSSL is not installed.
    """
    private = read_private(key, ask)
    with ExitStack() as stack:
        signature = memory_file(b"", stack)
        handles = (memory_file(private.encode(), stack), signature, memory_file(data, stack))
        secret, signed, content = map(_PATH.format, handles)
        done = _openssl(("-sign", secret, "-out", signed, content), handles)
        if not done.ok:
            raise ConfigError(
                "OpenSSL cannot sign with this key",
                place=str(key),
                details=done.tail(2),
                next_step="openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem",
            )
        return os.pread(signature, os.fstat(signature).st_size, 0)


def verifier(key: Path) -> Verify:
    """Return a function that raises SignatureError unless the owner of a public key signed."""

    def verify(data: bytes, signature: bytes) -> None:
        step = "ask the instructor for the file and the key again"
        if not signature:
            raise SignatureError("the workshop is not signed", place=str(key), next_step=step)
        with ExitStack() as stack:
            handles = (memory_file(signature, stack), memory_file(data, stack))
            signed, content = map(_PATH.format, handles)
            done = _openssl(("-verify", str(key), "-signature", signed, content), handles)
        if not done.ok:
            raise SignatureError(
                "the workshop is not signed by this key, or was changed since",
                place=str(key),
                next_step=step,
            )

    return verify


def _openssl(options: Sequence[str], handles: Sequence[int]) -> shell.Result:
    program = shell.which("openssl")
    if program is None:
        raise NeedsInstallError(
            "OpenSSL is not installed here", next_step="apt-get install openssl"
        )
    argv = [program, "dgst", "-sha256", *options]
    return shell.run(argv, pass_fds=handles, timeout=PATIENCE, check=False)
