"""Both quotings against the grammars that read them: bash itself, and sbatch's reader of #SBATCH lines."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile import HOSTILE, MULTILINE
from toolkit import quoting
from toolkit.errors import UsageError


def sbatch_reads(line: str) -> list[str]:
    """What Slurm makes of an #SBATCH line: ``_get_argument`` of src/sbatch/opt.c, written again from its source.

    The real one is asked in tests/cluster/test_script.py; this one is fast enough for thousands of
    strings.
    """
    lowered = line.lower()
    if "packjob" in lowered:  # the first one only, as strcasestr finds it
        at = lowered.index("packjob")
        line = line[:at] + "hetjob" + line[at + 6 :]
    words: list[str] = []
    rest = line
    while True:
        rest = rest.lstrip(" \t\v\f\r\n")
        if not rest or rest[0] == "#":
            return words
        word, quote, escaped, end = "", "", False, len(rest)
        for position, character in enumerate(rest):
            if not quote and not escaped and character.isspace():
                end = position
                break
            if escaped:
                word, escaped = word + character, False
            elif character == "\\":
                escaped = True
            elif quote:
                if character == quote:
                    quote = ""
                else:
                    word += character
            elif character in "\"'":
                quote = character
            elif character == "#":
                return [*words, word]
            else:
                word += character
        assert not quote, "sbatch: Unmatched quote"
        words.append(word)
        rest = rest[end:]


def bash_reads(text: str) -> list[str]:
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def test_bash_reads_back_every_hostile_string():
    words = [*HOSTILE, *MULTILINE, ""]
    assert bash_reads(quoting.shell_words(words)) == words


@given(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=60))
def test_sbatch_reads_back_any_line(value):
    assert sbatch_reads(f"--comment={quoting.sbatch(value)}") == [f"--comment={value}"]


@pytest.mark.parametrize("value", [*MULTILINE, "a\rb", "a\0b"])
def test_an_sbatch_line_refuses_what_it_cannot_carry(value):
    with pytest.raises(UsageError, match="cannot carry"):
        quoting.sbatch(value)


def test_a_nul_is_refused_by_the_shell_quoting():
    with pytest.raises(UsageError):
        quoting.shell("a\0b")


def test_percent_is_doubled_in_the_paths_of_logs():
    assert (
        quoting.sbatch_path("/data/100%/x") == '"/data/100%%/x"'
        or quoting.sbatch_path("/data/100%/x") == "/data/100%%/x"
    )
    with pytest.raises(UsageError, match="backslash"):
        quoting.sbatch_path("/data/a\\b")


def test_only_names_of_variables_are_expanded_in_a_sites_directory():
    text = quoting.shell_with_variables("/scratch/$USER/${PROJECT}/a b$(touch pwned)`x`\"'\\")
    read = subprocess.run(
        ["bash", "-c", f"printf %s {text}"],
        env={"USER": "me", "PROJECT": "p"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert read.stdout == "/scratch/me/p/a b$(touch pwned)`x`\"'\\"


def test_a_comment_stays_on_its_line():
    assert quoting.comment("a\nreboot\r\x1b[2Jb") == "a?reboot??[2Jb"
