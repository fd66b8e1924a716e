"""Text of others reaches people as text only, and without secrets."""

from __future__ import annotations

import ast
import json
import unicodedata
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import toolkit
from tests.readers import READERS, with_manifest
from tests.unit.run_fixtures import new_run
from tests.unit.samples import MANIFEST
from tests.unit.test_cli import said
from toolkit.cli import console
from toolkit.errors import CommandFailedError, PlanError, UsageError
from toolkit.model.base import to_json
from toolkit.model.run import Outcome
from toolkit.text import HIDDEN, is_secret, json_safe, one_line, redacted, visible

HOSTILE = {
    "color": "\x1b[31mred\x1b[0m",
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "link": "\x1b]8;;https://evil.example\x1b\\ok\x1b]8;;\x1b\\",
    "eight-bit": "\x9b31m\x9d0;owned\x9c",
    "overwrite": "secret\rsafe",
    "erase": "abc\b\b\bxyz",
    "override": "rm -rf x \u202e#",
    "isolate": "\u2066a\u2069",
    "no width": "a\u200bb\ufeffc\u2060d",
    "tags": "a\U000e0041\U000e007fb",
    "soft hyphen": "a\xadb",
    "separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "nul": "a\0b",
    "delete": "a\x7fb",
}
EVERYTHING = " ".join(HOSTILE.values())


def obeyed(text: str) -> set[str]:
    """Return the characters of a text that a terminal may do something else with than show."""
    odd = (0xAD, 0x61C, 0x180E, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F))
    odd += (*range(0x2060, 0x2070), *range(0xE0000, 0xE0080))
    return {
        character
        for character in text
        if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs") or ord(character) in odd
    } - {"\n"}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_a_terminal_obeys_is_shown(text):
    assert obeyed(text)
    assert not obeyed(visible(text))
    assert visible(text) == one_line(text)
    assert "\\" in visible(text)


@pytest.mark.parametrize(
    "text", ["", "plain", "é 한국어 日本 😀 ñ", "a\tb", "two\nlines\n", "אבג", "\u00a0"]
)
def test_other_text_stays_as_it_is(text):
    assert visible(text) == text
    assert visible(text.replace("\n", "\r\n")) == text
    assert one_line(text) == text.replace("\n", r"\n").replace("\t", r"\t")


_TEXTS = st.text() | st.sampled_from(list(HOSTILE.values()))


@given(st.recursive(_TEXTS, lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_json_keeps_its_value(value):
    text = json_safe(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(text) == value
    assert not obeyed(text)


SHOWN = (
    "mail me@example.org",
    "git@github.com:org/repo.git",
    "ssh://git@github.com/org/repo",
    "git+ssh://git@github.com/org/repo@v1",
    "pip install git+https://github.com/org/repo@v1.0",
    "https://host/a@b",
    "https://host:8080/a@b",
    "https://host:8080?mail=a@b",
    "https://[::1]:80/a@b",
    "kafka://h1:9092,h2:9092/topic@x",
    "file:///home/a@b",
    "postgres://h:5432/db?name=a@b",
    "docker://pytorch:22.03@sha256:0123",
    "see https://host/x, or write to a@b",
    "tokens_per_second: 12345",
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pw@mirror/simple", "https://****@mirror/simple"),
        ("https://token@mirror/simple", "https://****@mirror/simple"),
        ("postgres://u:p/w@h:5432/db?x=1", "postgres://****@h:5432/db?x=1"),
        ("postgres://u:12/34@h/db", "postgres://****@h/db"),
        ("postgresql+psycopg://u:12/34@h/db", "postgresql+psycopg://****@h/db"),
        ("mysql://u:p@w@h/db", "mysql://****@h/db"),
        ("mongodb://u:p@h1:27017,h2:27017/db", "mongodb://****@h1:27017,h2:27017/db"),
        ("redis://:p?w#@h", "redis://****@h"),
        ("https://u:p@[::1]:80/a", "https://****@[::1]:80/a"),
        ("https://u:p@host/org/repo@v1", "https://****@host/org/repo@v1"),
        ("http_proxy=http://u:p@proxy:3128 rest@x", "http_proxy=http://****@proxy:3128 rest@x"),
        ('{"url": "https://u:p@h", "mail": "a@b"}', '{"url": "https://****@h", "mail": "a@b"}'),
        ("a://b:c@d://e:f@g", "a://****@d://****@g"),
        ("ssh://u:p@h/x", "ssh://****@h/x"),
        ("NGC_API_KEY=abcdef123456", "NGC_API_KEY=****"),
        ("--token abcdefg x", "--token **** x"),
        ('"password": "hunter2"', '"password": "****"'),
        ("Authorization: Bearer abcdef.ghijkl", "Authorization: Bearer ****"),
        ("key nvapi-0123456789abcdef", "key ****"),
        *((text, text) for text in SHOWN),
    ],
)
def test_secrets_are_hidden_and_nothing_else_is(text, shown):
    assert redacted(text) == shown


SCHEMES = st.sampled_from(["https", "postgres", "redis", "amqp"])
PASSWORDS = st.text(st.sampled_from("abcxyz0189@/?#%!$*:"), max_size=12)


@given(SCHEMES, PASSWORDS)
def test_no_password_stays(scheme, password):
    text = f"cannot reach {scheme}://me:~{password}~@host.site:5432/db"
    # "p@h/w" is a password "p" for the host "h", as far as RFC 3986 can tell.
    assume(not set("/?#") & set(password.partition("@")[2]) and "://" not in password)
    assert redacted(text) == f"cannot reach {scheme}://{HIDDEN}@host.site:5432/db"


@pytest.mark.parametrize("name", ["NGC_API_KEY", "db_password", "MY_SECRET", "SSH_PRIVATE_KEY"])
def test_names_of_secrets(name):
    assert is_secret(name, "")
    assert not any(is_secret(name, "") for name in ("PATH", "KEYBOARD", "TOKENIZERS_PARALLELISM"))


def test_the_console_prints_nothing_that_is_obeyed(capsys):
    console.out(EVERYTHING)
    console.note(EVERYTHING)
    console.out(console.table((EVERYTHING,), [(EVERYTHING + "\nnext row",)]))
    console.out(console.mapping({EVERYTHING: EVERYTHING + "\n"}))
    console.out_json({EVERYTHING: EVERYTHING})
    wrong = UsageError(
        EVERYTHING,
        place=EVERYTHING,
        next_step=EVERYTHING,
        choices=(EVERYTHING,),
        value=EVERYTHING,
        details=(EVERYTHING,),
    )
    console.show_error(wrong)
    console.show_error(PlanError("no", [wrong]))
    with console.Steps() as steps:
        steps.begin("pull", EVERYTHING)
        steps.say("warning", EVERYTHING)
    output = capsys.readouterr()
    assert not obeyed(output.out + output.err)
    assert len(output.out.splitlines()) == 7


def test_an_error_cannot_fake_another_line(capsys):
    details = ("one\ntwo", "three\tfour")
    console.show_error(CommandFailedError("no\nerror: fake", place="a\nb", details=details))
    lines = capsys.readouterr().err.splitlines()
    shown = [
        r"error: no\nerror: fake",
        r"  at        a\nb",
        "  | one",
        "  | two",
        "  | three   four",
    ]
    assert lines[:5] == shown


# What runs inside an image, on a node or in a build prints for a program, not for a terminal.
PRINTS = (
    *("cli/console.py", "shell.py", "bench/", "scripts/", "doctor/scripts/", "images/checks/"),
    *("runtimes/probe.py", "images/builder/apptainer/sandbox.py"),
    "images/builder/apptainer/side_by_side.py",
)


def test_nothing_prints_but_the_console():
    root = Path(toolkit.__file__).parent
    calls = ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write")
    assert [
        f"{path}:{node.lineno}"
        for path in root.rglob("*.py")
        if not str(path.relative_to(root)).startswith(PRINTS)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in calls
    ] == []


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of this directory that has failed, with hostile logs, names and messages."""
    monkeypatch.chdir(tmp_path)
    outcome = Outcome(
        kind="failed",
        state="FAILED",
        exit_code=1,
        seconds=3.0,
        message=f"boom {EVERYTHING}",
        nodes="nid001",
        results={EVERYTHING: EVERYTHING},
    )
    made = new_run(tmp_path / "runs" / "train-0001", 7, outcome=outcome)
    everything = EVERYTHING.replace("\r", "")  # of a line, what follows the last of them is read
    lines = [f"0| {text}\n" for text in HOSTILE.values()]
    lines += [f"1| OSError: [Errno 28] No space left on device: '/x{everything}'\n"]
    (made.logs / "7-0-nid001.log").write_text("".join(lines))
    (made.logs / "7.log").write_bytes(b"slurmstepd: error \xff\xfe\x1b[5m\x9b2J\n")


@pytest.fixture
def image(tmp_path, monkeypatch):
    """An image of somebody else, whose manifest holds hostile text."""
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path))
    texts = {EVERYTHING: EVERYTHING + "\nfake row"}
    hostile = msgspec.structs.replace(
        MANIFEST, name="x", system=EVERYTHING, builder=EVERYTHING, frameworks=texts
    )
    image = with_manifest(READERS["sif"].seeds[0], to_json(hostile).encode())
    (tmp_path / "x.sif").write_bytes(image)
    (tmp_path / f"{HOSTILE['title'].replace('/', '')}.sif").touch()


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A log and a script of somebody else in the working directory."""
    monkeypatch.chdir(tmp_path)
    text = f"nid001| {EVERYTHING} error\n3| ModuleNotFoundError: No module named '{EVERYTHING}'\n"
    (tmp_path / "slurm-1.out").write_text(text)
    options = f"#SBATCH --job-name={HOSTILE['title']}\n#SBATCH --nodse={EVERYTHING}\n"
    script = f"#!/bin/bash\n{options}srun x --token={HOSTILE['link']}\n"
    (tmp_path / "job.sbatch").write_text(script)


WORD = EVERYTHING.replace("\0", "")


@pytest.mark.parametrize(
    ("fixture", "line", "code"),
    [
        ("run", "logs", 0),
        ("run", "explain", 0),
        ("run", "explain --json", 0),
        ("run", "ps", 0),
        ("run", "ps --json", 0),
        ("run", "results", 0),
        ("run", "results --json", 0),
        ("image", "image list", 0),
        ("image", "image show x", 0),
        ("image", "image search x", 0),
        ("log", "explain slurm-1.out", 0),
        ("log", "lint job.sbatch", 1),
        ("log", "explain WORD", 84),
        ("log", "image show WORD", 67),
        ("log", "run WORD", 66),
        ("log", "WORD", 64),
        ("log", "run --WORD", 64),
        ("log", "run --nodes WORD x.py", 64),
        ("log", "lint WORD", 78),
    ],
)
def test_what_is_hostile_is_shown_by_every_command(fixture, line, code, request):
    request.getfixturevalue(fixture)
    ended, out, error = said(*(word.replace("WORD", WORD) for word in line.split()))
    assert ended == code, error
    assert not obeyed(out + error)
    assert "\nfake row" not in out
    if "--json" in line:
        assert json.loads(out)
        assert r"\u001b[31m" in out, "programs get the text itself"
    elif fixture == "run":
        assert "\\x1b" in out + error
