"""Derive checks for an imported recipe from the packages that its commands install. Pure.

Debian's packages are checked by dpkg, Python's by the pip that installed them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from toolkit.quoting import shell_words

# A name may be that of a virtual package, which another one provides.
_APT_CHECK = (
    'for name in {names}; do dpkg-query -W "$name" 2>/dev/null || '
    "dpkg-query -W -f '${{Provides}}\\n' | grep -qw -- \"$name\" || "
    '{{ echo "$name is not installed"; exit 1; }}; done'
)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{1,80}")
_DISTRIBUTION = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,80})(?:\[[A-Za-z0-9,._ -]{0,200}\])?"
    r"(?:[=<>!~;@ ].{0,400})?\Z"
)
# Options of pip and apt-get that take a value.
_PIP_VALUES = frozenset(
    (
        *(
            "-r",
            "--requirement",
            "-c",
            "--constraint",
            "-e",
            "--editable",
            "-i",
            "--index-url",
            "--extra-index-url",
            "-f",
            "--find-links",
        ),
        *(
            "-t",
            "--target",
            "--prefix",
            "--root",
            "--platform",
            "--python-version",
            "--upgrade-strategy",
            "--progress-bar",
            "--timeout",
        ),
        *("--retries", "--trusted-host", "--global-option", "--config-settings"),
    )
)
_APT_VALUES = frozenset({"-o", "--option", "-t", "--target-release", "-c", "--config-file"})
_ELSEWHERE = frozenset({"-t", "--target", "--prefix", "--root"})


def derive_checks(command: str) -> dict[str, str]:
    """Return checks of the packages that a shell command installs, by name.

    Empty if it is not known.
    """
    result: dict[str, str] = {}
    for call in _calls(command):
        apt, (program, names) = _apt(call), _pip(call)
        if apt:
            result[f"apt-{len(result) + 1}"] = _APT_CHECK.format(names=shell_words(apt))
        if names:
            result[f"pip-{len(result) + 1}"] = (
                f'for name in {shell_words(names)}; do {program} show -q "$name" || exit 1; done; '
                f"echo {shell_words(names)}"
            )
    return result


def is_removing(command: str) -> bool:
    """Return whether a command removes packages again, so that those that stay are not known."""
    calls = [_without_settings(call) for call in _calls(command)]
    by_apt = {"purge", "remove", "autoremove", "--purge", "--auto-remove", "-P", "-r"}
    return any(
        (call[:1] in (["apt-get"], ["apt"], ["dpkg"]) and by_apt & set(call)) or "uninstall" in call
        for call in calls
    )


def _calls(command: str) -> Iterator[list[str]]:
    """Yield the simple commands of a line as words; none where only a shell could find them."""
    lexer = shlex.shlex(command.replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    call: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|()"):
                yield call
                call = []
            else:
                call.append(word)
    except ValueError:
        return
    yield call


def _apt(call: Sequence[str]) -> list[str]:
    words = _without_settings(call)
    if words[:1] not in (["apt-get"], ["apt"]) or "install" not in words:
        return []
    names = _arguments(words[words.index("install") + 1 :], _APT_VALUES)
    plain = [name.partition("=")[0].partition("/")[0] for name in names]
    return [name for name in plain if _PACKAGE.fullmatch(name) and not name.endswith("-")]


def _pip(call: Sequence[str]) -> tuple[str, list[str]]:
    """Return the pip that was called, and the distributions that it was to install."""
    words = _without_settings(call)
    if "install" not in words:
        return "", []
    at = words.index("install")
    before = words[:at]
    is_pip = bool(before) and re.fullmatch(r"(?:\S{0,400}/)?pip[0-9.]{0,5}", before[0]) is not None
    is_module = len(before) >= 3 and before[1:3] == ["-m", "pip"] and "python" in before[0]
    after = words[at + 1 :]
    if not (is_pip or is_module) or any(word.partition("=")[0] in _ELSEWHERE for word in after):
        return "", []
    program = shell_words(before[:1] if is_pip else before[:3])
    matches = (
        _DISTRIBUTION.fullmatch(word)
        for word in _arguments(after, _PIP_VALUES)
        if not word.startswith((".", "/")) and "$" not in word
    )
    return program, [
        match["name"]
        for match in matches
        if match and "://" not in match[0] and not match["name"].endswith((".whl", ".gz", ".zip"))
    ]


def _without_settings(call: Sequence[str]) -> list[str]:
    words = list(call)
    while words and (
        re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,100}=.{0,1000}", words[0])
        or words[0] in ("sudo", "env", "exec", "then", "do")
    ):
        words.pop(0)
    return words


def _arguments(words: Sequence[str], with_value: frozenset[str]) -> Iterator[str]:
    skip = False
    for word in words:
        if not skip and not word.startswith("-"):
            yield word
        skip = not skip and word in with_value
