r"""Make text safe to show: hide secrets, and write out what a terminal would obey. Pure.

Logs, labels, manifests, answers of registries and names of jobs come from other users. Escape
sequences in them can hide lines, set the title, write to the clipboard (OSC 52) or make a link lead
elsewhere (OSC 8); marks of direction can make ``rm -rf x # comment`` read backwards; characters of
no width make two names look alike. All of these are written as Python writes them in a string:
``\x1b[2J``.

The time is linear in the length of the text, whatever is in it: one line of a log can be megabytes
long. So each pattern of a secret can only begin where a word or a URL begins (``(?<!...)``), and
reads that word once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

HIDDEN = "****"

# Patterns are compiled where they are first used (``re`` keeps them): most of what is printed is
# plain, and each command imports this module.
#
# C0 but tab and line feed, DEL, C1 (0x9b begins an 8-bit sequence); soft hyphen; marks, embeddings,
# overrides and isolates of direction; characters of no width; separators of lines and paragraphs;
# annotations, shorthand and musical controls; tags; and halves of surrogates, which no terminal
# takes.
_OBEYED = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ufff9-\\ufffb\\ud800-\\udfff\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
)
# What follows the scheme of a URL, up to a blank, a quote or the next URL.
_URL = r"(?<=[A-Za-z0-9+.-])://(?P<rest>(?:(?!://)[^\s'\"])+)"
_HOST = r"(?:\[[^\]/]*\]|[^:,\[\]]+)(?::\d{0,5})?"
_HOSTS = rf"(?:{_HOST}(?:,{_HOST})*)?"
_SCHEME = r"[A-Za-z0-9+.-]{1,32}\Z"
# There a user without a password is no token: git+ssh://git@host.
_NAME_ONLY = frozenset({"ssh", "sftp", "scp", "rsync"})
# Databases have no "@" in their names: what looks like a port before one may be the beginning of a
# password, as in postgres://me:12/34@host.
_DATABASES = frozenset(
    {"postgres", "postgresql", "mysql", "mariadb", "redis", "rediss", "mongodb", "amqp", "amqps"}
)
_DIGEST = ("sha256:", "sha512:")
_SECRET_NAME = (
    r"(?i:token(?!s(?![a-z])|iz)|passwd|password|secret|(?:api|private)[_-]?key|credential)"
)
_SECRETS = (
    r"(?<![\w.-])(?=[\w.-]*?--)"
    r"(?P<before>[\w.-]*(?i:token|passwd|password|secret|api-?key)[ =])\S+",
    rf"(?<![\w-])(?=[\w-]*?{_SECRET_NAME})(?P<before>[\w-]+[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]{{4,}}",
    r"(?P<before>\b(?:Bearer|Basic)\s+)[A-Za-z0-9+/=._-]{8,}",
    # What the keys of well-known services begin with.
    r"(?P<before>)\b(?:nvapi-|hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[bap]-|AKIA)[A-Za-z0-9_-]{12,}",
)


def visible(text: str) -> str:
    """Return ``text`` with what a terminal would obey written out; line feeds and tabs stay."""
    if text.replace("\n", "").isprintable():
        return text
    return re.sub(f"[{_OBEYED}]", _written, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return ``text`` as ``visible`` does, with line feeds and tabs written out as well."""
    return text if text.isprintable() else re.sub(f"[{_OBEYED}\\t\\n]", _written, text)


def _written(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode("ascii")


def json_safe(text: str) -> str:
    """Return JSON of the same value in which strings hold nothing that a terminal would obey."""
    return re.sub(f"[{_OBEYED}]", _json_escape, text)


def _json_escape(character: re.Match[str]) -> str:
    units = character[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def redacted(text: str) -> str:
    """Return ``text`` with every secret in it replaced by four stars."""
    text = re.sub(_URL, _without_login, text)
    for pattern in _SECRETS:
        text = re.sub(pattern, lambda match: match["before"] + HIDDEN, text)
    return text


def logins(text: str) -> Iterator[str]:
    """Yield the user information of every URL in ``text``: ``user:password``, or a token alone."""
    for url in re.finditer(_URL, text):
        end = _login_end(url)
        if end >= 0:
            yield url["rest"][:end]


def _without_login(url: re.Match[str]) -> str:
    end = _login_end(url)
    return url[0] if end < 0 else f"://{HIDDEN}{url['rest'][end:]}"


def _login_end(url: re.Match[str]) -> int:
    """Return the position of the ``@`` that ends a URL's user information; -1: there is no secret.

    It is the last ``@`` before the path, since people write passwords with ``@`` in them. A
    password with ``/`` in it ends the authority too early: what is left, ``user:pass``, is then no
    host with a port, and the last ``@`` of all is taken.
    """
    rest = url["rest"]
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    end = authority.rfind("@")
    if end < 0 and not re.fullmatch(_HOSTS, authority):
        end = rest.rfind("@")
    elif end < 0 and ":" in authority and _schemes(url) & _DATABASES:
        end = rest.partition("?")[0].rfind("@")
    if rest.startswith(_DIGEST, end + 1):  # docker://pytorch:22.03@sha256:...
        return -1
    if ":" not in rest[: max(end, 0)] and _schemes(url) & _NAME_ONLY:
        return -1
    return end


def _schemes(url: re.Match[str]) -> frozenset[str]:
    """Return the scheme of a URL, taken apart: ``git`` and ``ssh`` of ``git+ssh``."""
    scheme = re.search(_SCHEME, url.string[max(0, url.start() - 32) : url.start()])
    return frozenset(scheme[0].lower().split("+")) if scheme else frozenset()


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable must not be shown, by its name or because of its value."""
    return bool(re.search(_SECRET_NAME, name)) or redacted(value) != value


def shows(words: Iterable[str]) -> bool:
    """Return whether the words of a command line show a secret."""
    line = " ".join(words)
    return bool(line) and redacted(line) != line
