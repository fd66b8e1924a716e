"""Configuration that another user could have written is not obeyed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.test_cli import said
from toolkit import sites, trust, trusted_files
from toolkit.errors import ConfigError, UntrustedError
from toolkit.images.registry import source as registry_source
from toolkit.images.store.signatures import signature
from toolkit.model.job import Job
from toolkit.planning.layers import chosen_site
from toolkit.planning.target import resolve
from toolkit.trust import Entry, Reader, find_distrust
from toolkit.trusted_files import read_text, require_own, require_trusted

ME, OTHER, NOBODY, MY_GROUP, PROJECT = 1000, 1001, 65534, 1000, 2000
DIRECTORY, FILE, LINK = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777
ROOT = Entry("/", DIRECTORY, 0, 0)
TMP = Entry("/tmp", stat.S_IFDIR | 0o1777, 0, 0)
MINE = Entry("/home/me", DIRECTORY, ME, MY_GROUP)
PROJECT_FILE = Entry("/home/me/toolkit.toml", FILE, ME, MY_GROUP)

READER = Reader(uid=ME, is_private=lambda gid: gid in (0, MY_GROUP))
AS_ROOT = READER._replace(uid=0, is_private=lambda gid: gid == 0)
IN_NAMESPACE = READER._replace(unmapped=NOBODY)

Give = Callable[[Path], None]


@pytest.mark.parametrize(
    ("reader", "entries", "writers"),
    [
        # Owners: this user and root are trusted, everybody else is not; root trusts root alone.
        (READER, [ROOT, MINE, PROJECT_FILE], None),
        (READER, [ROOT, MINE, PROJECT_FILE._replace(uid=0)], None),
        (READER, [ROOT, MINE, PROJECT_FILE._replace(uid=OTHER)], "owner"),
        (READER, [ROOT, MINE._replace(uid=OTHER), PROJECT_FILE], "owner"),
        (READER, [ROOT, MINE, PROJECT_FILE._replace(mode=LINK, uid=OTHER), PROJECT_FILE], "owner"),
        (AS_ROOT, [ROOT, MINE._replace(uid=0), PROJECT_FILE._replace(uid=0)], None),
        (AS_ROOT, [ROOT, MINE, PROJECT_FILE], "owner"),
        # Modes: of files and of directories; a sticky directory keeps others from replacing what is
        # in it.
        (READER, [ROOT, MINE, PROJECT_FILE._replace(mode=FILE | 0o002)], "others"),
        (READER, [ROOT, MINE._replace(mode=DIRECTORY | 0o002), PROJECT_FILE], "others"),
        (
            READER,
            [ROOT, TMP, PROJECT_FILE._replace(path="/tmp/toolkit.toml", in_shared=True)],
            None,
        ),
        (
            READER,
            [ROOT, TMP, PROJECT_FILE._replace(path="/tmp/toolkit.toml", uid=OTHER, in_shared=True)],
            "owner",
        ),
        (READER, [ROOT, TMP._replace(uid=OTHER), PROJECT_FILE], "owner"),
        (READER, [ROOT, MINE, PROJECT_FILE._replace(mode=LINK), PROJECT_FILE], None),
        # Groups: a user's own is like the user, a project's is not.
        (
            READER,
            [ROOT, MINE._replace(mode=DIRECTORY | 0o020), PROJECT_FILE._replace(mode=FILE | 0o020)],
            None,
        ),
        (READER, [ROOT, MINE, PROJECT_FILE._replace(mode=FILE | 0o020, gid=PROJECT)], "group"),
        (
            READER,
            [ROOT, MINE._replace(mode=DIRECTORY | 0o2020, gid=PROJECT), PROJECT_FILE],
            "group",
        ),
        (READER, [ROOT, MINE._replace(mode=DIRECTORY | 0o3020, gid=PROJECT), PROJECT_FILE], None),
        # A user namespace hides who owns the way; the file itself must still be the user's, and
        # nothing may lie where all write.
        (IN_NAMESPACE, [ROOT._replace(uid=NOBODY), MINE, PROJECT_FILE], None),
        (
            IN_NAMESPACE,
            [ROOT._replace(uid=NOBODY), MINE, PROJECT_FILE._replace(uid=NOBODY)],
            "owner",
        ),
        (
            IN_NAMESPACE,
            [
                ROOT,
                TMP._replace(uid=NOBODY),
                MINE._replace(uid=NOBODY, in_shared=True),
                PROJECT_FILE,
            ],
            "owner",
        ),
        (READER, [ROOT._replace(uid=NOBODY), MINE, PROJECT_FILE], "owner"),
    ],
)
def test_who_could_have_written_it(
    reader: Reader, entries: list[Entry], writers: str | None
) -> None:
    distrust = find_distrust(entries, reader)
    assert (distrust.writers if distrust else None) == writers


def test_what_the_user_trusts_is_obeyed_and_nothing_beside_it() -> None:
    home = Entry("/home/prof", DIRECTORY, OTHER, PROJECT)
    course = Entry("/home/prof/course", stat.S_IFDIR | 0o2775, OTHER, PROJECT)
    file = Entry("/home/prof/course/toolkit.toml", FILE, OTHER, PROJECT)
    beside = Entry("/home/prof/toolkit.toml", FILE, ME, MY_GROUP)
    reader = READER._replace(trusted=("/home/prof/course",))
    assert find_distrust([ROOT, home, course, file], READER) is not None
    assert find_distrust([ROOT, home, course, file], reader) is None
    assert find_distrust([ROOT, home, beside], reader) is not None
    assert (
        find_distrust([ROOT, home, course._replace(path="/home/prof/course2")], reader) is not None
    )


def test_a_directory_of_a_cluster_must_be_the_users_own() -> None:
    trusted = READER._replace(trusted=("/home",))
    for entry, is_own in [
        (MINE, True),
        (MINE._replace(mode=stat.S_IFDIR | 0o700), True),
        (MINE._replace(uid=0), False),
        (MINE._replace(mode=stat.S_IFDIR | 0o1777), False),
        (MINE._replace(uid=OTHER), False),
    ]:
        assert (find_distrust([ROOT, entry], trusted, own=True) is None) == is_own


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Make a path another user's: really if we are root, else by pretending to be another user."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 4242, 4242, follow_symlinks=False)
        else:
            other = os.geteuid() + 1
            monkeypatch.setattr(os, "geteuid", lambda: other)

    return give


def test_files_are_read_through_links_and_parents(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("text é")
    (tmp_path / "a" / "b" / "link").symlink_to("../file")
    (tmp_path / "absolute").symlink_to(tmp_path / "a" / "b" / "link")
    (tmp_path / "directory").symlink_to("a")
    for way in (
        *"a/file a/b/link absolute directory/b/../file".split(),
        "a/../../" + tmp_path.name + "/a/file",
    ):
        assert read_text(tmp_path / way) == "text é"
    require_own(tmp_path / "directory" / "b" / "..")
    require_trusted(Path("/"))


@pytest.mark.parametrize("which", ["file", "directory", "link", "target"])
def test_each_step_of_the_way_counts(which: str, tmp_path: Path, give: Give) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "settings"
    target.write_text("nodes = 2\n")
    link = tmp_path / "project" / "toolkit.toml"
    link.symlink_to(target)
    assert read_text(link) == "nodes = 2\n"
    give(
        {"file": target, "directory": target.parent, "link": link, "target": tmp_path / "project"}[
            which
        ]
    )
    with pytest.raises(UntrustedError, match="belongs to user") as caught:
        read_text(link)
    assert str(link) in caught.value.cause
    assert "TOOLKIT_TRUST=" in str(caught.value.next_step)


def test_directories_that_others_may_write_are_named_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "open" / "below" / "toolkit.toml"
    file.parent.mkdir(parents=True)
    file.write_text("nodes = 2\n")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(
        UntrustedError, match="every user of this machine can write to the directory"
    ) as caught:
        read_text(file)
    assert caught.value.next_step == f"chmod o-w {tmp_path / 'open'}"
    (tmp_path / "open").chmod(0o1777)
    assert read_text(file) == "nodes = 2\n"
    file.chmod(0o666)
    with pytest.raises(UntrustedError, match="can write to it"):
        read_text(file)


def test_trust_is_given_by_a_variable(
    tmp_path: Path, give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "toolkit.toml").write_text("nodes = 2\n")
    (tmp_path / "way").symlink_to("course")
    give(tmp_path / "course")
    monkeypatch.setenv("TOOLKIT_TRUST", f"/nowhere:{tmp_path / 'other'}")
    with pytest.raises(UntrustedError) as caught:
        read_text(tmp_path / "course" / "toolkit.toml")
    assert f'TOOLKIT_TRUST="$TOOLKIT_TRUST":{tmp_path / "course"}' in str(caught.value.next_step)
    monkeypatch.setenv("TOOLKIT_TRUST", f"/nowhere:{tmp_path / 'way'}")
    assert read_text(tmp_path / "course" / "toolkit.toml") == "nodes = 2\n"


def test_what_was_examined_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "toolkit.toml"
    file.write_text("nodes = 2\n")
    real = trust.find_distrust

    def exchange(*arguments: object, **options: object) -> object:
        (tmp_path / "evil").write_text("nodes = 666\n")
        (tmp_path / "evil").replace(file)
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(trusted_files, "find_distrust", exchange)
    assert read_text(file) == "nodes = 2\n"


def test_what_is_no_file_is_not_read_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for name in ("pipe", ".", "loop", "missing", "file/below"):
        with pytest.raises(OSError, match=r".+"):
            read_text(tmp_path / name)


def test_no_handle_stays_open(tmp_path: Path, give: Give) -> None:
    file = tmp_path / "toolkit.toml"
    file.write_text("nodes = 2\n")
    before = len(list(Path("/proc/self/fd").iterdir()))
    read_text(file)
    give(file)
    for path in (file, tmp_path / "missing"):
        with pytest.raises((UntrustedError, OSError)):
            read_text(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_project_file_of_another_user_stops_what_would_obey_it(
    tmp_path: Path, give: Give, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    text = 'site = "neuron"\n[env]\nLD_PRELOAD = "/tmp/evil.so"\n[registries]\n"nvcr.io" = "evil.example/x"\n'
    (tmp_path / "toolkit.toml").write_text(text)
    monkeypatch.chdir(below)
    assert chosen_site(below) == "neuron"
    assert registry_source.read_mirrors() == {"nvcr.io": "evil.example/x"}
    give(tmp_path / "toolkit.toml")
    for read in (lambda: chosen_site(below), registry_source.read_mirrors):
        with pytest.raises(UntrustedError, match="belongs to user"):
            read()
    (below / "train.py").touch()
    code, _, error = said(monkeypatch, capsys, "run", "--dry-run", "train.py")
    assert code == 94
    assert f"{tmp_path / 'toolkit.toml'}" in error


def test_an_own_project_file_hides_that_of_another(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "toolkit.toml").write_text('site = "neuron"\n')
    (tmp_path / "toolkit.toml").chmod(0o666)
    with pytest.raises(UntrustedError, match=r"toolkit\.toml") as caught:
        chosen_site(below)
    (below / "toolkit.toml").touch()
    assert chosen_site(below) == "auto"
    assert caught.value.exit_code == 94


@pytest.mark.parametrize("kind", ["sites/ours.toml", "toolkit.toml", "explain/ours.toml"])
def test_files_of_the_configuration_are_held_to_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolkit.explain.gather import rules

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "toolkit" / kind
    file.parent.mkdir(parents=True)
    file.write_text('name = "ours"\n' if "sites" in kind else "")
    file.chmod(0o666)
    read = {
        "sites/ours.toml": lambda: sites.load("ours"),
        "toolkit.toml": lambda: chosen_site(tmp_path),
        "explain/ours.toml": rules,
    }[kind]
    with pytest.raises(UntrustedError, match="can write to it"):
        read()
    if "sites" in kind:
        assert sites.from_file(file).name == "ours", (
            "a file that the user names is the user's decision"
        )


def test_a_job_that_the_user_names_may_be_another_users(tmp_path: Path, give: Give) -> None:
    for folder in ("course/exercise", "jobs/mine", "jobs/digits-ddp"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "job.toml").write_text('script = "train.py"\nnodes = 2\n')
        (tmp_path / folder / "train.py").touch()
        give(tmp_path / folder / "job.toml")
    assert resolve("course/exercise", tmp_path).layer.values["nodes"] == 2
    assert resolve("jobs/mine", tmp_path).layer.values["nodes"] == 2
    with pytest.raises(UntrustedError):  # the user may mean the shipped one
        resolve("jobs/digits-ddp", tmp_path)


def test_a_broken_file_is_still_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "toolkit.toml").write_text("nodes = \n")
    with pytest.raises(ConfigError):
        chosen_site(tmp_path)


def test_the_key_of_a_signature_is_not_taken_from_another_user(
    tmp_path: Path, give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []
    monkeypatch.setattr(
        "toolkit.images.store.signatures.verify", lambda _, key: verified.append(key)
    )
    here, folder = tmp_path / "here", tmp_path / "course"
    for directory in (here, folder):
        directory.mkdir()
    above = tmp_path / "key.pub"
    job = Job(require_signed=True, signature_key="key.pub")
    above.touch()
    assert signature(job, "/image.sif", here, folder, "toolkit.toml") == []
    give(above)
    (found,) = signature(job, "/image.sif", here, folder, "toolkit.toml")
    assert isinstance(found, UntrustedError)
    assert signature(job, "/image.sif", here, folder, "--signature-key") == []
    (folder / "key.pub").touch()
    give(folder / "key.pub")
    assert signature(job, "/image.sif", here, folder, "job.toml") == [], (
        "the user named the folder that names its key"
    )
    (found,) = signature(job, "/image.sif", here, folder, "site strict")
    assert isinstance(found, UntrustedError)
    assert verified == [str(above), str(above), str(folder / "key.pub")]
