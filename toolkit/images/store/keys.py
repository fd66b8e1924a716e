"""Keys in PEM: their fingerprints, and whether a passphrase guards them.

Pure: it works on text that its caller has read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

_BLOCK = re.compile(
    r"-----BEGIN (?P<kind>[A-Z0-9 ]+)-----\n(?P<body>.*?)-----END (?P=kind)-----", re.DOTALL
)
_FINGERPRINT = re.compile(r"(?:0x)?(?P<digits>[0-9A-Fa-f]{40})\Z")
PUBLIC = "PUBLIC KEY"


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
    block = _BLOCK.search(public.replace("\r\n", "\n"))
    if block is None or block["kind"] != PUBLIC:
        raise ValueError(f"it holds no {PUBLIC}" + (f", but a {block['kind']}" if block else ""))
    try:
        return hashlib.sha256(
            base64.b64decode("".join(block["body"].split()), validate=True)
        ).hexdigest()
    except binascii.Error:
        raise ValueError(f"its {PUBLIC} is damaged") from None


def is_guarded(private: str) -> bool:
    """Return whether a private key can be used only with its passphrase.

    Raises:
        ValueError: the text is not a private key that OpenSSL reads.
    """
    block = _BLOCK.search(private.replace("\r\n", "\n"))
    if block is None or not block["kind"].endswith("PRIVATE KEY"):
        raise ValueError("it holds no private key" + (f", but a {block['kind']}" if block else ""))
    if "COSIGN" in block["kind"] or "SIGSTORE" in block["kind"]:
        raise ValueError("it is a key of cosign's, which OpenSSL does not read")
    return "ENCRYPTED" in block["kind"] or "Proc-Type: 4,ENCRYPTED" in block["body"]
