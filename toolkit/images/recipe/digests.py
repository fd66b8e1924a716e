"""Hashes of texts: the keys of recipes, locks, caches and images. ``files`` hashes files. Pure."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def hash_texts(*texts: str) -> str:
    """Return the SHA-256 of texts, with a zero byte between them."""
    return hash_bytes("\0".join(texts).encode())


def hash_bytes(data: bytes) -> str:
    """Return the SHA-256 of bytes by Python's own implementation, if it is there.

    `hashlib` loads OpenSSL first, a twentieth of the command that prints a definition.
    """
    try:
        module: Any = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        module = import_module("hashlib")
    digest: str = module.sha256(data).hexdigest()
    return digest
