"""Workshops: the file, the packed archive and what is hostile in it, joining, and shared results."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.stand_in import standing_in
from tests.unit.samples import make_case
from tests.unit.workshop_fixtures import OWN, TEXT, joined, largest_file, packs, write_folder
from toolkit.cli.groups import workshop as command
from toolkit.errors import (
    CommandFailedError,
    ConfigError,
    ForbiddenError,
    MalformedInputError,
    ScriptMissingError,
    SignatureError,
    ToolkitError,
    UsageError,
)
from toolkit.files import hash_file
from toolkit.model.base import from_json, to_json
from toolkit.model.run import Outcome
from toolkit.planning.plan import decide
from toolkit.planning.settings import merge, project_layers
from toolkit.planning.target import resolve
from toolkit.workshops import archive, exercises, join, pack, results
from toolkit.workshops.model import CONTENTS, Contents, Done, Results


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workshop with a shipped exercise and one of its own, without images."""
    monkeypatch.chdir(tmp_path)
    return write_folder(tmp_path / "first")


def test_a_new_workshop_can_be_read_and_its_exercises_can_be_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exercises.create(Path("first"))
    workshop = exercises.load(tmp_path / "first")
    assert [exercise.name for exercise in workshop.exercises] == ["01-ddp", "02-horovod"]
    for exercise in workshop.exercises:
        assert resolve(f"first/{exercise.name}", tmp_path)[1].values["image"] == "pytorch_cpu"
    with pytest.raises(UsageError, match="exists already"):
        exercises.create(Path("first"))
    with pytest.raises(UsageError, match="cannot be the name"):
        exercises.create(Path("not a name"))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("people", "peopel", "close: people|'peopel'"),
        ('"01-ddp"', '"../x"', "expected a name of a folder"),
        ('"01-ddp"', '"02-own"', "two exercises are called 02-own"),
        ('folder = "own"', 'folder = "../own"', "expected a file or folder beside"),
        ('folder = "own"', 'folder = "jobs/digits-dpp"', "no notebook is in jobs/digits-dpp"),
        ("own.ko.md", "missing.md", "there is no file"),
        ("people = 4", 'results = "here"', "absolute path"),
        ("people = 4", 'data = {"a한" = "d"}', "expected a plain name"),
    ],
)
def test_a_fault_is_named_with_its_key(folder, before, after, message):
    (folder / "workshop.toml").write_text(TEXT.replace(before, after))
    with pytest.raises(ConfigError, match=message) as caught:
        exercises.load(folder)
    assert "workshop.toml" in str(caught.value.place)


def test_packing_twice_gives_the_same_bytes_and_data_is_bound_read_only(folder, tmp_path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "one").write_text("1")
    text = TEXT.replace("[[exercises]]", f'[data]\ndigits = "{tmp_path}/digits"\n[[exercises]]', 1)
    (folder / "workshop.toml").write_text(text)
    first, second = (packs(folder, tmp_path / name) for name in ("a.tar", "b.tar"))
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    assert packs(folder, second).read_bytes() == first.read_bytes()
    with tarfile.open(first) as reader:  # any tar reads it
        assert reader.getnames()[0] == CONTENTS
        assert "exercises/01-ddp/train.py" in reader.getnames()
    member = joined(first, tmp_path / "mine")
    job = merge(project_layers(member.directory)).job
    assert job.bind == (f"{tmp_path}/mine/.workshop/data/digits.sqfs:/data/digits:squashfs",)


def test_a_workshop_is_joined_from_its_pages(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    pages, data = tmp_path / "pages", packed.read_bytes()
    pack.publish(packed.parent / "first", packed, hash_file(packed), pages, "")
    sums = (pages / "SHA256SUMS").read_text()
    assert sums == f"{hashlib.sha256(data).hexdigest()}  workshop.tar\n"
    assert (pages / "workshop.tar").read_bytes() == data
    with standing_in() as server:
        server.answers["/workshop.tar"] = lambda _: (200, {}, data)
        for path in ("", "/ko.html", "/workshop.tar", "?key=1", "/?key=1#top"):
            archive_of = join.fetch(f"http://{server.name}{path}", tmp_path)
            assert archive_of.read_bytes() == data
        member = joined(f"http://{server.name}/", tmp_path / "mine")
        assert resolve("01-ddp", member.directory)[0].script == "01-ddp/train.py"
        with pytest.raises(CommandFailedError, match="could not be fetched"):
            joined(f"http://{server.name}/other.tar", tmp_path / "bad")
    assert not (tmp_path / "bad").exists()
    assert not list(tmp_path.glob(".toolkit-workshop-*"))


def test_an_address_that_does_not_answer_is_an_error_in_plain_words(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(CommandFailedError, match=r"could not be fetched: Connection refused\Z"):
        joined(f"http://127.0.0.1:{port}/", tmp_path / "m")
    for address in ("http://[x", "ftp://example.org/x.tar", "file:///etc/passwd"):
        with pytest.raises(CommandFailedError, match="could not be fetched"):
            joined(address, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_the_work_of_a_participant_is_never_overwritten(packed, tmp_path):
    mine = tmp_path / "mine"
    joined(packed, mine)
    script = mine / "01-ddp" / "train.py"
    script.write_text("my own work")
    again = joined(packed, mine)
    assert (again.unchanged, script.read_text()) == (("01-ddp", "02-own"), "my own work")

    aside = join.reset(mine, again.joined, "01-ddp")
    assert aside is not None
    assert (aside / "train.py").read_text() == "my own work"
    assert "my own work" not in script.read_text()
    with pytest.raises(ScriptMissingError) as caught:
        join.reset(mine, again.joined, "01-dpp")
    assert caught.value.close == "01-ddp"
    (mine / ".workshop" / CONTENTS).unlink()
    with pytest.raises(ScriptMissingError, match="no exercise 01-ddp"):
        join.reset(mine, again.joined, "01-ddp")
    assert script.is_file()


def test_settings_of_another_project_are_not_replaced(packed, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "toolkit.toml").write_text("nodes = 2\n")
    with pytest.raises(UsageError, match="of its own"):
        joined(packed, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["toolkit.toml"]


def test_joining_an_unpacked_workshop_notices_changed_files(packed, tmp_path):
    shared = tmp_path / "shared"
    archive.unpack(packed, shared)
    joined(shared, tmp_path / "one")
    (shared / "exercises/02-own/train.py").write_text("print('{} ')\n")
    with pytest.raises(MalformedInputError, match=r"02-own/train\.py was changed"):
        joined(shared, tmp_path / "two")
    (shared / "exercises/02-own/train.py").unlink()
    with pytest.raises(MalformedInputError, match=r"02-own/train\.py is missing"):
        joined(shared, tmp_path / "two")
    assert not (tmp_path / "two").exists()


def entry(name: str, data: bytes = b"", **fields: object) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def listed(packed: Path, files: dict[str, bytes]) -> bytes:
    """The first entry of an archive with other files."""
    contents = json.loads(to_json(archive.read_contents(packed)))
    contents["files"] = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    return entry(CONTENTS, json.dumps(contents).encode())


END = bytes(1024)
X = {"x": b"data"}
# What follows the list, after a list of files: None is X.
LISTED: dict[str, tuple[dict[str, bytes] | None, bytes]] = {
    "negative size": (None, entry("x", b"", size=-4)[:512] + b"data" + END),
    "absolute": ({"/tmp/x": b"d"}, entry("/tmp/x", b"d") + END),
    "inner parent": ({"a/../x": b"d"}, entry("a/../x", b"d") + END),
    "line break": ({"a\nb": b"d"}, entry("a\nb", b"d") + END),
    "the list twice": ({CONTENTS: b"d"}, entry(CONTENTS, b"d") + END),
    "file and directory": ({"a": b"d", "a/b": b"d"}, entry("a", b"d") + entry("a/b", b"d") + END),
    "symbolic link": (None, entry("x", type=tarfile.SYMTYPE, linkname="/etc/passwd") + END),
    "long name header": (None, entry("x", b"../../x\0", type=tarfile.GNUTYPE_LONGNAME) + END),
    "pax header": (None, entry("x", b"", type=tarfile.XHDTYPE) + END),
    "another name": (None, entry("y", b"data") + END),
    "another size": (None, entry("x", b"data more") + END),
    "another content": (None, entry("x", b"date") + END),
    "missing file": (None, END),
    "one more file": (None, entry("x", b"data") + entry("y", b"d") + END),
    "cut off": (None, entry("x", b"data")[:514]),
}
WHOLE = {
    "empty": b"",
    "no list": entry("x", b"data") + END,
    "list is no JSON": entry(CONTENTS, b"{") + END,
    "a list of gigabytes": entry(CONTENTS, size=1 << 32)[:512],
}


@pytest.mark.parametrize("name", [*LISTED, *WHOLE])
def test_hostile_archives_are_refused_and_leave_nothing(name, packed, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    bad = tmp_path / "bad.tar"
    files, rest = LISTED.get(name, (None, b""))
    bad.write_bytes(WHOLE[name] if name in WHOLE else listed(packed, files or X) + rest)
    with pytest.raises(MalformedInputError):
        archive.unpack(bad, place / "target")
    assert list(place.iterdir()) == []
    assert not (tmp_path / "x").exists()


def test_a_full_disk_leaves_nothing(packed, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    # Of the exercises' scripts some are larger.
    with largest_file(4096), pytest.raises(OSError, match="File too large"):
        archive.unpack(packed, place / "target")
    assert list(place.iterdir()) == []


def test_signatures(folder, packed, tmp_path):
    for name in ("own", "other"):
        for options in (
            f"ecparam -name prime256v1 -genkey -noout -out {tmp_path}/{name}.pem",
            f"ec -in {tmp_path}/{name}.pem -pubout -out {tmp_path}/{name}.pub",
        ):
            subprocess.run(["openssl", *options.split()], check=True, capture_output=True)
    signed = tmp_path / "signed.tar"
    packs(folder, signed, key=tmp_path / "own.pem")
    own, other = (pack.verifier(tmp_path / f"{name}.pub") for name in ("own", "other"))
    archive.unpack(signed, tmp_path / "unpacked", own)
    archive.unpack(signed, tmp_path / "unverified")
    with pytest.raises(SignatureError, match="not signed by this key"):
        archive.unpack(signed, tmp_path / "refused", other)
    with pytest.raises(SignatureError, match="is not signed"):
        archive.unpack(packed, tmp_path / "refused", own)
    assert joined(tmp_path / "unpacked", tmp_path / "m", verify=own).contents.name == "first"


def test_the_guide_is_complete_and_escapes_everything(folder):
    pages = pack.pages(folder, exercises.load(folder), "first.tar")
    assert set(pages) == {"index.html", "ko.html"}
    has = ("<code>02-own</code> <strong>now</strong>: &lt;script&gt;", "toolkit run 01-ddp")
    lacks = ("<script", "jobs/digits-ddp", "src=")
    assert [text for text in has if text not in pages["index.html"]] == []
    assert [text for text in lacks if text in pages["index.html"]] == []
    korean = ('<html lang="ko">', "나의 실습", "참가하기")
    assert [text for text in korean if text not in pages["ko.html"]] == []


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# A\nb\nc", "<h3>A</h3>\n<p>b\nc</p>"),
        ("<img src=x>", "<p>&lt;img src=x&gt;</p>"),
        ("![a](https://b.org/c.png)", '<p>!<a href="https://b.org/c.png">a</a></p>'),
        ("[a](https://b.org/?c=1&d)", '<p><a href="https://b.org/?c=1&amp;d">a</a></p>'),
        ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"),
        ("[a](data:image/png;base64,x)", "<p>[a](data:image/png;base64,x)</p>"),
        ('[a](https://b" onclick="x)', "<p>[a](https://b&quot; onclick=&quot;x)</p>"),
    ],
)
def test_markdown(text, html):
    assert pack.to_html(text) == f"{html}\n"


@pytest.fixture
def member(folder: Path, drop: Path, tmp_path: Path) -> join.Membership:
    text = TEXT.replace("people", f'results = "{drop}"\npeople')
    (folder / "workshop.toml").write_text(text)
    target = tmp_path / "shared.tar"
    packs(folder, target)
    return joined(target, tmp_path / "mine", share=True)


def ran(member: join.Membership, name: str, kind: str, accuracy: object) -> None:
    run = member.directory / "runs" / name
    run.mkdir(parents=True)
    (run / "plan.json").write_text("{}")
    outcome = Outcome(
        state="COMPLETED",
        exit_code=0,
        seconds=2,
        results={} if accuracy is None else {"accuracy": accuracy},
        kind=kind,  # type: ignore[arg-type]
    )
    (run / "outcome.json").write_text(to_json(outcome))


def test_results_are_left_and_read(member, drop):
    ran(member, "01-ddp-0001", "failed", None)
    ran(member, "01-ddp-0002", "ok", 0.9)
    ran(member, "01-ddp-0003", "ok", 0.95)
    ran(member, "02-own-0001", "ok", "text")
    ran(member, "private-0001", "ok", 1.0)
    target = results.leave(member.directory)
    assert target is not None
    assert target.stat().st_mode & 0o777 == 0o640
    assert drop.stat().st_mode & 0o7777 == 0o3733
    (each,), unread = results.read_all(drop, "first")
    assert not unread
    assert set(each.exercises) == {"01-ddp", "02-own"}
    first = each.exercises["01-ddp"]
    assert (first.state, first.tries, first.accuracy) == ("ok", 3, 0.95)
    assert each.exercises["02-own"].accuracy is None


@pytest.mark.parametrize(
    ("launcher", "kind", "state"),
    [
        ("notebook", "cancelled", "ok"),
        ("notebook", "timeout", "ok"),
        ("notebook", "failed", "failed"),
        ("torchrun", "cancelled", "cancelled"),
    ],
)
def test_a_notebook_that_its_user_has_ended_is_done(member, drop, launcher, kind, state):
    ran(member, "02-own-0001", kind, None)
    decided = decide(make_case({}))
    decided = replace(decided, launch=replace(decided.launch, launcher=launcher))
    (member.directory / "runs" / "02-own-0001" / "plan.json").write_text(to_json(decided))
    results.leave(member.directory)
    (each,), _ = results.read_all(drop, "first")
    assert each.exercises["02-own"].state == state


def test_the_texts_of_exercises_name_the_folders_that_participants_have(folder, tmp_path):
    """Also where one exercise speaks of another, and in the guide."""
    text = "Run `jobs/own`, not jobs/digits-ddp-srun; then jobs/digits-ddp. ../jobs/own stays"
    (folder / "own" / "README.md").write_text(text)
    (folder / "own.ko.md").write_text(text)
    packs(folder, tmp_path / "first.tar")
    mine = joined(tmp_path / "first.tar", tmp_path / "mine").directory
    assert "toolkit run 01-ddp" in (mine / "01-ddp" / "README.md").read_text()
    assert "jobs/digits-ddp" not in (mine / "01-ddp" / "README.md").read_text()
    wanted = "Run `02-own`, not jobs/digits-ddp-srun; then 01-ddp. ../jobs/own stays"
    assert (mine / "02-own" / "README.md").read_text() == wanted
    for page in pack.pages(folder, exercises.load(folder), "first.tar").values():
        assert "not jobs/digits-ddp-srun; then 01-ddp." in page


def test_results_of_two_directories_are_in_one_file(member, drop, tmp_path):
    other = joined(Path(member.joined.source), tmp_path / "other", share=True)
    ran(member, "01-ddp-0001", "ok", 0.9)
    ran(other, "01-ddp-0001", "failed", None)
    ran(other, "02-own-0001", "ok", 0.8)
    for each in (member, other, member):
        results.leave(each.directory)
    (read,), _ = results.read_all(drop, "first")
    found = {name: (done.state, done.accuracy, done.tries) for name, done in read.exercises.items()}
    assert found == {"01-ddp": ("ok", 0.9, 1), "02-own": ("ok", 0.8, 1)}


def test_without_consent_nothing_is_left(member, drop, tmp_path):
    own = joined(Path(member.joined.source), tmp_path / "other")
    ran(own, "01-ddp-0001", "ok", 0.9)
    assert results.leave(own.directory) is None
    assert results.read_all(drop, "first") == ([], [])


def test_a_closed_directory_is_an_error(member, drop):
    results.close_directory(drop)
    assert not drop.exists()
    with pytest.raises(ForbiddenError, match="cannot be left: No such file"):
        results.leave(member.directory)
    with pytest.raises(ToolkitError, match="no results yet"):
        results.read_all(drop, "first")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.symlink_to("/dev/zero"),
        os.mkfifo,
        lambda path: path.write_text(" " * 70_000),
        lambda path: path.write_text("[" * 60_000),
        lambda path: path.write_text(to_json(Results(name="stranger", workshop="first"))),
        lambda path: path.write_text(to_json(Results(name=path.stem, workshop="second"))),
    ],
)
def test_a_hostile_file_of_a_participant_does_not_count(write, drop):
    write(drop / f"{OWN}.json")
    counted, ((name, why),) = results.read_all(drop, "first")
    assert (counted, name) == ([], f"{OWN}.json")
    assert why


def test_files_without_the_name_of_their_owner_are_counted(drop):
    (drop / "link.json").symlink_to(drop)
    os.mkfifo(drop / "pipe.json")
    told = [("...", "2 files without the name of their owner")]
    assert results.read_all(drop, "first") == ([], told)


def test_results_of_an_earlier_version_are_read():
    earlier = (
        '{"name": "a", "workshop": "b", "exercises": {"c": {"state": "ok", "finished": "2026"}}}'
    )
    assert from_json(earlier, Results).exercises == {"c": Done(state="ok")}


def test_the_commands_from_new_to_close(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = CliRunner().invoke
    assert call(command, ["new", "first"]).exit_code == 0
    text = Path("first/workshop.toml").read_text().replace('pytorch_cpu = ""', "")
    Path("first/workshop.toml").write_text(f'results = "{tmp_path}/results"\n{text}')
    for words, wanted in (
        (["show", "first"], "02-horovod"),
        (["pack", "first", "--pages", "public"], "workshop.tar"),
        (["unpack", "first.tar", "shared"], "toolkit workshop join shared"),
        (["open", "first"], "results"),
        (["status", "first"], "PARTICIPANT"),
        (["close", "first", "--unpacked", "shared"], "removed"),
    ):
        done = call(command, words)
        assert done.exit_code == 0, (words, done.output, done.exception)
        assert wanted in done.output, words
    assert not Path("shared").exists()
    assert not Path("results").exists()
    assert from_json(Path("first.tar").read_bytes()[512:].split(b"\0")[0], Contents).name == "first"
