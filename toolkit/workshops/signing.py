"""Sign the list of a packed workshop's files with a key in PEM, and verify it, by OpenSSL."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from toolkit import shell
from toolkit.errors import ConfigError, NeedsInstallError, SignatureError
from toolkit.images.store.signatures import read_private
from toolkit.workshops.archive import Verify

PATIENCE = 60.0  # seconds


def sign(data: bytes, key: Path) -> bytes:
    """Return the signature of data with a private key.

    Raises:
        ConfigError: the key cannot be used.
        NeedsInstallError: OpenSSL is not installed.
    """
    read_private(key)
    with TemporaryDirectory() as place:
        content, signature = Path(place, "content"), Path(place, "signature")
        content.write_bytes(data)
        done = _openssl("-sign", key, "-out", signature, content)
        if not done.ok:
            raise ConfigError(
                "OpenSSL cannot sign with this key",
                place=str(key),
                details=done.tail(2),
                next_step="openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem",
            )
        return signature.read_bytes()


def verifier(key: Path) -> Verify:
    """Return a function that raises SignatureError unless the owner of a public key signed."""

    def verify(data: bytes, signature: bytes) -> None:
        step = "ask the instructor for the file and the key again"
        if not signature:
            raise SignatureError("the workshop is not signed", place=str(key), next_step=step)
        with TemporaryDirectory() as place:
            content, signed = Path(place, "content"), Path(place, "signature")
            content.write_bytes(data)
            signed.write_bytes(signature)
            done = _openssl("-verify", key, "-signature", signed, content)
        if not done.ok:
            raise SignatureError(
                "the workshop is not signed by this key, or was changed since",
                place=str(key),
                next_step=step,
            )

    return verify


def _openssl(*options: str | Path) -> shell.Result:
    program = shell.which("openssl")
    if program is None:
        raise NeedsInstallError(
            "OpenSSL is not installed here", next_step="apt-get install openssl"
        )
    return shell.run([program, "dgst", "-sha256", *options], timeout=PATIENCE, check=False)
