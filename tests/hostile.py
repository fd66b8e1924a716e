"""Strings that break careless quoting. Every renderer is run through all of them."""

from __future__ import annotations

HOSTILE: tuple[str, ...] = (
    "plain",
    "two words",
    "it's",
    'say "hi"',
    "back\\slash",
    "trailing\\",
    "$HOME",
    "${HOME}",
    "$(touch pwned)",
    "`touch pwned`",
    "a;touch pwned",
    "a && touch pwned",
    "a | b > c < d &",
    "# not a comment",
    "a # b",
    "--option=value",
    "–N 4 —gres",
    "*?[a-z]{1,2}",
    "~root",
    "!history",
    "tab\there",
    "%j %x %% %",
    "packjob PackJob",
    "한글 日本語 émoji 🚀",
    "'\"'\"\\'",
    *"= : ,".split(),
)
# What a shell word can hold and an #SBATCH line cannot.
MULTILINE: tuple[str, ...] = ("two\nlines", "\n", "#SBATCH --nodes=9\nreboot")
