"""Secrets out of what people are shown: passwords in URLs, keys and tokens. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "****"
_URL = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://)(?P<user>[^/@\s'\":]*)(?::[^/@\s'\"]*)?@", re.IGNORECASE)
_NAMED = re.compile(
    r"(?P<before>[\w-]*(?:token(?!s\b|iz)|passwd|password|secret|api[_-]?key|credential)[\w-]*[\"']?\s*(?:=|:)\s*[\"']?)(?P<value>[^\s\"',;&]{4,})",
    re.IGNORECASE,
)
_OPTION = re.compile(r"(?P<before>--[\w.-]*(?:token|passwd|password|secret|api-?key)[ =])(?P<value>\S+)", re.IGNORECASE)
_BEARER = re.compile(r"(?P<before>\b(?:Bearer|Basic)\s+)(?P<value>[A-Za-z0-9+/=._-]{8,})")
# What the keys of well-known services begin with.
_KNOWN = re.compile(r"\b(?:nvapi-|hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[bap]-|AKIA)[A-Za-z0-9_-]{12,}")


def redacted(text: str) -> str:
    """``text`` with what is secret in it replaced by four stars."""
    text = _URL.sub(lambda match: f"{match['before']}{HIDDEN}@", text)
    for pattern in (_OPTION, _NAMED, _BEARER):
        text = pattern.sub(lambda match: match["before"] + HIDDEN, text)
    return _KNOWN.sub(HIDDEN, text)


_SECRET_NAME = re.compile(r"(?:token(?!s\b|iz)|passwd|password|secret|api_?key|credential|private_?key)", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable must not be shown: by its name, or because its value has a password or a service's key in it."""
    return is_secret_name(name) or redacted(value) != value


def shows(words: Iterable[str]) -> bool:
    """Whether the words of a command line show a secret."""
    line = " ".join(words)
    return redacted(line) != line


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable with this name is likely to be secret: ``NGC_API_KEY``."""
    return bool(_SECRET_NAME.search(name))
