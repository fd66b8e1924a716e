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
    at = line.lower().find("packjob")  # the first one only, as strcasestr finds it
    if at >= 0:
        line = line[:at] + "hetjob" + line[at + 6 :]
    words: list[str] = []
    word, quote, characters = "", "", iter(f"{line} ")
    for character in characters:
        if character == "\\":
            word += next(characters)
        elif character == quote:
            quote = ""
        elif quote:
            word += character
        elif character in "\"'":
            quote = character
        elif character == "#":
            break
        elif character.isspace():
            words += [word] if word else []
            word = ""
        else:
            word += character
    assert not quote, "sbatch: Unmatched quote"
    return words + [word] * bool(word)


def bash_reads(text: str) -> list[str]:
    variables = {"USER": "me", "PROJECT": "p"}
    words = ["bash", "-c", f"printf '%s\\0' {text}"]
    done = subprocess.run(words, env=variables, capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def test_bash_reads_back_every_hostile_string():
    words = [*HOSTILE, *MULTILINE, ""]
    assert bash_reads(quoting.shell_words(words)) == words


@given(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=60))
def test_sbatch_reads_back_any_line(value):
    assert sbatch_reads(f"--comment={quoting.sbatch(value)}") == [f"--comment={value}"]


@pytest.mark.parametrize(
    ("quote", "value", "message"),
    [
        *((quoting.sbatch, value, "cannot carry") for value in (*MULTILINE, "a\rb", "a\0b")),
        (quoting.shell, "a\0b", "NUL"),
        (quoting.sbatch_path, "/data/a\\b", "backslash"),
    ],
)
def test_what_cannot_be_carried_is_refused(quote, value, message):
    with pytest.raises(UsageError, match=message):
        quote(value)


def test_percent_is_doubled_in_the_paths_of_logs():
    assert quoting.sbatch_path("/data/100%/x") == "/data/100%%/x"


def test_only_names_of_variables_are_expanded_in_a_sites_directory():
    text = quoting.shell_with_variables("/scratch/$USER/${PROJECT}/a b$(touch pwned)`x`\"'\\")
    assert bash_reads(text) == ["/scratch/me/p/a b$(touch pwned)`x`\"'\\"]


def test_a_comment_stays_on_its_line():
    assert quoting.comment("a\nreboot\r\x1b[2Jb") == "a?reboot??[2Jb"
