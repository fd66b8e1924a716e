"""Text of others reaches the terminal as text only."""

from __future__ import annotations

import ast
import json
import sys
import unicodedata
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolkit
from tests.unit.samples import MANIFEST, make_case
from toolkit.cli import console
from toolkit.cli import main as cli
from toolkit.errors import CommandFailedError, PlanError, UsageError
from toolkit.images.sif import header as sif
from toolkit.model.base import to_json
from toolkit.model.job import Job
from toolkit.model.run import Outcome, Submission
from toolkit.planning.plan import decide
from toolkit.records import store
from toolkit.text import json_safe, one_line, visible

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


def is_obeyed(character: str) -> bool:
    """Return whether a terminal may do something else with a character than to show it."""
    return unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs") or character in (
        "\xad\u061c\u180e\ufeff"
        + "".join(
            map(
                chr,
                (
                    *range(0x200B, 0x2010),
                    *range(0x202A, 0x202F),
                    *range(0x2060, 0x2070),
                    *range(0xE0000, 0xE0080),
                ),
            )
        )
    )


def obeyed(text: str) -> set[str]:
    return {character for character in text if is_obeyed(character)} - {"\n"}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_a_terminal_obeys_is_shown(text: str) -> None:
    assert obeyed(text)
    assert not obeyed(visible(text))
    assert visible(text) == one_line(text)
    assert text.encode("unicode_escape").decode().replace("\\xad", "") in visible(text).replace(
        "\\xad", ""
    ) or "\\" in visible(text)


@pytest.mark.parametrize(
    "text", ["", "plain", "é 한국어 日本 😀 ñ", "a\tb", "two\nlines\n", "אבג", "\u00a0"]
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_a_line_is_one_line() -> None:
    assert one_line("a\nb\tc") == r"a\nb\tc"
    assert visible("a\r\nb") == "a\nb"


@settings(deadline=None)
@given(st.text(st.characters()))
def test_nothing_is_obeyed_whatever_it_is(text: str) -> None:
    assert not obeyed(visible(text)) - {"\t"}
    assert not obeyed(one_line(text))


@settings(deadline=None)
@given(
    st.recursive(
        st.text() | st.sampled_from(list(HOSTILE.values())),
        lambda inner: st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_json_keeps_its_value(value: object) -> None:
    text = json_safe(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(text) == value
    assert not obeyed(text)


def test_the_console_prints_nothing_that_is_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_an_error_cannot_fake_another_line(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_error(
        CommandFailedError("no\nerror: fake", place="a\nb", details=("one\ntwo", "three\tfour"))
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[:5] == [
        r"error: no\nerror: fake",
        r"  at        a\nb",
        "  | one",
        "  | two",
        "  | three   four",
    ]


def test_steps_on_a_terminal_still_draw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.Steps() as steps:
        steps.begin("pull", "\x1b[31mx")
    assert capsys.readouterr().err.startswith("\r\033[Kpull       \\x1b[31mx")


def test_a_document_is_exact_for_programs_and_shown_to_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console.document("echo '\x1b[2J'\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.document("echo '\x1b[2J'\n")
    assert capsys.readouterr().out == "echo '\x1b[2J'\necho '\\x1b[2J'\n"


# What runs inside an image, on a node or in a build prints for a program, not for a terminal.
PRINTS: tuple[str, ...] = (
    *"cli/console.py shell.py bench/ images/checks/ images/verify/scripts/".split(),
    *"scripts/ doctor/scripts/".split(),
)
PRINTS += (
    *"runtimes/discover/probe.py runtimes/discover/importable.py".split(),
    *"images/build/apptainer/sandbox.py images/build/apptainer/fence.py".split(),
    "images/build/apptainer/side_by_side.py",
    *"localcluster/supervisor.py".split(),
)


def test_nothing_prints_but_the_console() -> None:
    root = Path(toolkit.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        if str(path.relative_to(root)).startswith(PRINTS):
            continue
        calls = (
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        )
        found += [
            f"{path}:{call.lineno}"
            for call in calls
            if ast.unparse(call.func)
            in ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write")
        ]
    assert not found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> store.Paths:
    """A run of this directory that has failed, with hostile logs, names and messages."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "runs" / "train-0001"
    assert store.create(directory)
    paths = store.write(directory, decide(make_case()), Job(image="pytorch_cpu"), "#!/bin/bash\n")
    paths.submission.write_text(
        to_json(Submission(job_id=7, site="local", submitted="2026-01-01T00:00:00+00:00"))
    )
    outcome = Outcome(
        kind="failed",
        state="FAILED",
        exit_code=1,
        seconds=3.0,
        message=f"boom {EVERYTHING}",
        nodes="nid001",
        results={EVERYTHING: EVERYTHING},
    )
    paths.outcome.write_text(to_json(outcome))
    lines = [f"0| {text}" for text in HOSTILE.values()]
    everything = EVERYTHING.replace("\r", "")  # of a line, what follows the last of them is read
    lines += [f"1| OSError: [Errno 28] No space left on device: '/x{everything}'"]
    (paths.logs / "7-0-nid001.log").write_text("\n".join(lines) + "\n")
    (paths.logs / "7.log").write_bytes(b"slurmstepd: error \xff\xfe\x1b[5m\x9b2J\n")
    return paths


def said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["toolkit", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    output = capsys.readouterr()
    return int(caught.value.code or 0), output.out + output.err


@pytest.mark.parametrize(
    "words",
    [
        ("logs",),
        ("logs", "--raw"),
        ("logs", "--rank", "0"),
        ("explain",),
        ("explain", "train-0001"),
        ("ps",),
        ("results",),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("run")
def test_hostile_logs_are_shown(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = said(monkeypatch, capsys, *words)
    assert code == 0
    assert not obeyed(output)
    assert "\\x1b" in output


@pytest.mark.usefixtures("run")
def test_a_rank_that_has_printed_nothing_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = said(monkeypatch, capsys, "logs", "--rank", "7")
    assert code == 0
    assert "rank 7 of train-0001 has printed nothing; ranks 0 to 1 have" in output


@pytest.mark.parametrize(
    "words", [("explain", "--json"), ("ps", "--json"), ("results", "--json")], ids=" ".join
)
@pytest.mark.usefixtures("run")
def test_json_of_hostile_logs_is_exact(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = said(monkeypatch, capsys, *words)
    assert code == 0
    assert not obeyed(output)
    assert "\x1b[31m" in "".join(strings(json.loads(output)))


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings(part)]
    return [value] if isinstance(value, str) else []


def test_a_hostile_log_file_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(
        f"nid001| {EVERYTHING} error\n3| ModuleNotFoundError: No module named '{EVERYTHING}'\n"
    )
    code, output = said(monkeypatch, capsys, "explain", str(log))
    assert (code, obeyed(output)) == (0, set())


def test_a_hostile_script_is_linted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --job-name={HOSTILE['title']}\n#SBATCH --nodse={EVERYTHING}\nsrun x --token={HOSTILE['link']}\n"
    )
    _, output = said(monkeypatch, capsys, "lint", str(script))
    assert output
    assert not obeyed(output)


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image of somebody else, whose manifest holds hostile text."""
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path))
    path = tmp_path / "x.sif"
    path.write_bytes(sif.build_header((16, 1, 1), bytes(16), 0, "x86_64") + bytes(18))
    manifest = msgspec.structs.replace(
        MANIFEST,
        name="x",
        size=path.stat().st_size,
        system=EVERYTHING,
        builder=EVERYTHING,
        frameworks={EVERYTHING: EVERYTHING + "\nfake row"},
    )
    path.with_name("x.json").write_text(to_json(manifest))
    (tmp_path / f"{HOSTILE['title'].replace('/', '')}.sif").write_bytes(b"")
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("image", "list"),
        ("image", "show", "x"),
        ("image", "search", "x"),
        ("image", "list", "--json"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("image")
def test_a_hostile_manifest_is_shown(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = said(monkeypatch, capsys, *words)
    assert code == 0
    assert not obeyed(output)
    assert "\nfake row" not in output


@pytest.mark.parametrize(
    "words",
    [
        ("logs", EVERYTHING),
        ("explain", EVERYTHING),
        ("image", "show", EVERYTHING),
        ("run", EVERYTHING),
        (EVERYTHING,),
        ("run", f"--{EVERYTHING}"),
        ("run", "--nodes", EVERYTHING, "x.py"),
        ("lint", EVERYTHING),
        ("image", "pull", EVERYTHING),
    ],
)
def test_a_hostile_argument_is_shown(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = said(monkeypatch, capsys, *(word.replace("\0", "") for word in words))
    assert code >= 64
    assert not obeyed(output)
