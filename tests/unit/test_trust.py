"""What another user could have written, or can exchange, is not obeyed."""

from __future__ import annotations

import os
import stat
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.test_cli import said
from toolkit import sites, trust
from toolkit.errors import ConfigError, UntrustedError, UsageError
from toolkit.explain.gather import rules
from toolkit.files import read_toml
from toolkit.images.registry import registry
from toolkit.images.store.signatures import signature
from toolkit.model.job import Job
from toolkit.planning.settings import chosen
from toolkit.runs.submit import reserve
from toolkit.trust import require_trusted

ME, OTHER, NOBODY, MINE, PROJECT = 1000, 1001, 65534, 1000, 2000
Entry = tuple[int, int, int]  # type and mode, owner, group


def directory(owner: int = ME, mode: int = 0o755, group: int = MINE) -> Entry:
    return stat.S_IFDIR | mode, owner, group


def file(owner: int = ME, mode: int = 0o644, group: int = MINE) -> Entry:
    return stat.S_IFREG | mode, owner, group


ROOTS = directory(owner=0, group=0)
TMP = directory(owner=0, mode=0o1777, group=0)
HIDDEN = directory(owner=NOBODY, group=NOBODY)  # root's or another user's, in a user namespace


@pytest.mark.parametrize(
    ("entries", "options", "writers"),
    [
        # The user and root are trusted, everybody else is not; root trusts root alone.
        ([directory(), file()], {}, ""),
        ([directory(), file(owner=OTHER)], {}, "owner"),
        ([directory(owner=OTHER), file()], {}, "owner"),
        ([ROOTS, file(owner=0, group=0)], {"user": 0}, ""),
        ([ROOTS, directory(), file(owner=0)], {"user": 0}, "owner"),
        # Nobody else may write to a directory or file.
        ([directory(), file(mode=0o646)], {}, "others"),
        ([directory(mode=0o757), file()], {}, "others"),
        # A sticky directory keeps others from what is in it, but not its owner.
        ([TMP, file()], {}, ""),
        ([TMP, directory(), directory()], {}, ""),
        ([TMP, file(owner=OTHER)], {}, "owner"),
        ([directory(owner=OTHER, mode=0o1777), directory()], {}, "owner"),
        # Others can still put something into it.
        ([TMP], {}, "others"),
        ([directory(), directory(mode=0o1770, group=PROJECT)], {}, "group"),
        # A user's own group is like the user, a project's is not.
        ([directory(mode=0o775), file(mode=0o664)], {}, ""),
        ([directory(mode=0o775, group=0), file()], {}, ""),
        ([directory(), file(mode=0o664, group=PROJECT)], {}, "group"),
        ([directory(owner=0, mode=0o2770, group=PROJECT), directory(), file()], {}, "group"),
        ([directory(owner=0, mode=0o3770, group=PROJECT), directory(), file()], {}, ""),
        # What nobody can have made at the path is for whoever creates it to examine.
        ([directory()], {}, ""),
        # In a user namespace root's directories look like another user's, and may lead to the user's own.
        ([HIDDEN, directory(), file()], {"root": HIDDEN}, ""),
        ([HIDDEN, directory(), file()], {}, "owner"),
        ([HIDDEN, file(owner=NOBODY)], {"root": HIDDEN}, "owner"),
        # Where all write, only /tmp and its like are known to be root's.
        ([directory(NOBODY, mode=0o1777), directory(), file()], {"root": HIDDEN}, ""),
        ([directory(NOBODY, mode=0o1777), HIDDEN, file()], {"root": HIDDEN}, "owner"),
        ([HIDDEN, directory(NOBODY, mode=0o1777), directory()], {"root": HIDDEN}, "others"),
        ([HIDDEN, directory(NOBODY, 0o775, NOBODY), directory()], {"root": HIDDEN}, "group"),
        ([HIDDEN, directory(OTHER), directory()], {"root": HIDDEN}, "owner"),
        # What the user trusts is obeyed, and nothing beside it.
        ([directory(OTHER), directory(OTHER), file(OTHER)], {"trusted": ""}, "owner"),
        ([directory(OTHER), directory(OTHER), file(OTHER)], {"trusted": "/tmp/b"}, ""),
        ([directory(OTHER), directory(OTHER), file(OTHER)], {"trusted": "/nowhere:/tmp:/else"}, ""),
        ([directory(OTHER), directory(OTHER), file(OTHER)], {"trusted": "/tmp/b/c"}, ""),
        ([directory(OTHER), directory(OTHER), file(OTHER)], {"trusted": "/tmp/b/d"}, "owner"),
        ([directory(0, 0o2770, PROJECT), directory(), directory()], {"trusted": "/tmp"}, ""),
        ([directory(0, 0o2770, PROJECT), directory()], {"trusted": "/tmp/c"}, "group"),
    ],
)
def test_who_could_exchange_the_last_of_entries_that_are_below_each_other(
    entries, options, writers, monkeypatch
):
    """Options are the user, the entry of the root directory, and what the user trusts."""
    names = ("/", "/tmp", "/tmp/b", "/tmp/b/c", "/tmp/b/c/d")
    places = zip(names, (options.get("root", ROOTS), *entries), strict=False)
    statuses = {
        name: os.stat_result((mode, 0, 0, 0, uid, gid, 0, 0, 0, 0))
        for name, (mode, uid, gid) in places
    }
    user = options.get("user", ME)

    def status_of(path: Path, **_: object) -> os.stat_result:
        if str(path) not in statuses:
            raise FileNotFoundError(path)
        return statuses[str(path)]

    causes = {"owner": "belongs to", "group": "the members", "others": "every user"}
    refused = pytest.raises(UntrustedError, match=causes[writers]) if writers else nullcontext()
    with monkeypatch.context() as patch, refused:
        patch.setenv("TOOLKIT_TRUST", options.get("trusted", ""))
        patch.setattr(Path, "stat", status_of)
        patch.setattr(Path, "lstat", status_of)
        patch.setattr(os.path, "realpath", os.path.normpath)
        patch.setattr(os, "geteuid", lambda: user)
        patch.setattr(trust, "_is_private", lambda gid: gid == 0 or gid == MINE == user)
        require_trusted(Path(names[len(entries)]))


def test_a_group_is_private_if_it_is_the_users_own_or_roots_and_has_no_other_member(monkeypatch):
    groups = {
        0: ("root", []),
        5: ("staff", []),
        MINE: ("me", ["me", "root"]),
        1001: ("me", ["me", "you"]),
        PROJECT: ("ours", ["me"]),
    }
    users = {ME: SimpleNamespace(pw_name="me")}
    group_of = lambda gid: SimpleNamespace(gr_name=groups[gid][0], gr_mem=groups[gid][1])  # noqa: E731
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    monkeypatch.setattr("pwd.getpwuid", users.__getitem__)
    monkeypatch.setattr("grp.getgrgid", group_of)
    assert [gid for gid in (*groups, 4711) if trust._is_private(gid)] == [0, MINE]
    users.clear()
    assert not trust._is_private(MINE), "a user whom this machine does not know"


@pytest.fixture
def give(monkeypatch):
    """Make a path another user's: really if we are root, else by pretending to be another user."""

    def give(path: Path) -> None:
        if (user := os.geteuid()) == 0:
            os.chown(path, 4242, 4242, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    return give


def nodes(path: Path) -> object:
    """Return a setting of a file that was found by searching."""
    return read_toml(path, Job).nodes


WAY = "project crossing/link crossing elsewhere elsewhere/settings first project/toolkit.toml"


@pytest.mark.parametrize("which", WAY.split())
def test_each_step_of_the_way_counts(which, tmp_path, give):
    """As written and as it leads: a job hours later goes it again."""
    for name in ("project", "elsewhere", "crossing"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere/settings").write_text("nodes = 2\n")
    (tmp_path / "project/toolkit.toml").symlink_to("../crossing/link")
    (tmp_path / "crossing/link").symlink_to(tmp_path / "elsewhere/settings")
    (tmp_path / "first").symlink_to("project")
    path = tmp_path / "first/toolkit.toml"
    assert nodes(path) == 2
    give(tmp_path / which)
    with pytest.raises(UntrustedError, match="belongs to user") as caught:
        nodes(path)
    assert str(path) in caught.value.cause
    assert "TOOLKIT_TRUST=" in str(caught.value.next_step)


def test_who_can_write_is_named_with_the_remedy(tmp_path, give, monkeypatch):
    file = tmp_path / "course" / "below" / "toolkit.toml"
    file.parent.mkdir(parents=True)
    file.write_text("nodes = 2\n")
    (tmp_path / "way").symlink_to("course")
    course = tmp_path / "course"

    def refused(cause: str) -> str:
        with pytest.raises(UntrustedError, match=cause) as caught:
            nodes(file)
        return str(caught.value.next_step)

    course.chmod(0o777)
    assert refused("every user of this machine can write to /") == f"chmod o-w {course}"
    course.chmod(0o755)
    file.chmod(0o666)
    assert refused("can write to it") == f"chmod o-w {file}"
    file.chmod(0o644)
    course.chmod(0o2770)
    with monkeypatch.context() as patch:
        patch.setattr(trust, "_is_private", lambda _: False)
        trusting = f"if you trust all who can write there: export TOOLKIT_TRUST={course}"
        assert refused("members of group") == f"chmod g-w {course}; or {trusting}"
        patch.setenv("TOOLKIT_TRUST", "/kept")
        assert f'export TOOLKIT_TRUST="$TOOLKIT_TRUST":{course}' in refused("members of group")
    give(course)
    assert refused("belongs to user").endswith(f"export TOOLKIT_TRUST={file.parent}")
    monkeypatch.setenv("TOOLKIT_TRUST", f"/nowhere:{tmp_path / 'way'}")
    assert nodes(file) == 2


@pytest.mark.parametrize("is_protected", [False, True])
def test_what_another_user_links_to_a_trusted_directory_is_refused(
    is_protected, tmp_path, give, monkeypatch
):
    """They could let the link lead elsewhere afterwards."""

    def refuse(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if tmp_path / "runs" in (path.parent, path) and follow_symlinks:
            raise PermissionError(path)
        return os.stat(path, follow_symlinks=follow_symlinks)  # noqa: PTH116

    (tmp_path / "course").mkdir()
    (tmp_path / "runs").symlink_to("course")
    give(tmp_path / "runs")
    monkeypatch.setenv("TOOLKIT_TRUST", str(tmp_path / "course"))
    if is_protected:  # the kernel follows no such link: fs.protected_symlinks
        monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(UntrustedError, match="belongs to user"):
        reserve(tmp_path / "runs" / "a-0001")


def test_a_project_file_of_another_user_stops_what_would_obey_it(tmp_path, give, monkeypatch):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (below / "train.py").touch()
    text = 'site = "neuron"\n[registries]\n"nvcr.io" = "evil.example/x"\n'
    (tmp_path / "toolkit.toml").write_text(text)
    monkeypatch.chdir(below)
    assert chosen(below).site == "neuron"
    assert registry.read_mirrors() == {"nvcr.io": "evil.example/x"}
    give(tmp_path / "toolkit.toml")
    with pytest.raises(UntrustedError, match="belongs to user"):
        registry.read_mirrors()
    code, _, error = said("run", "--dry-run", "train.py")
    assert (code, str(tmp_path / "toolkit.toml") in error) == (94, True)
    (below / "toolkit.toml").touch()
    assert chosen(below).site == "auto", "one's own file hides it"


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("sites/ours.toml", lambda: sites.load("ours")),
        ("toolkit.toml", lambda: chosen(Path("/")).site),
        ("explain/ours.toml", rules),
    ],
)
def test_files_of_the_configuration_are_held_to_it(name, read, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "toolkit" / name
    file.parent.mkdir(parents=True)
    file.touch()
    file.chmod(0o666)
    with pytest.raises(UntrustedError, match="can write to it"):
        read()


def test_a_site_file_that_the_user_names_is_the_users_decision(tmp_path):
    file = tmp_path / "ours.toml"
    file.write_text('name = "ours"\n')
    file.chmod(0o666)
    assert sites.from_file(file).name == "ours"


def test_the_key_of_a_signature_is_not_taken_from_another_user(tmp_path, give, monkeypatch):
    verified = []
    verify = "toolkit.images.store.signatures.verify"
    monkeypatch.setattr(verify, lambda _, key: verified.append(key))
    here, folder = tmp_path / "here", tmp_path / "course"
    here.mkdir()
    folder.mkdir()
    job = Job(require_signed=True, signature_key="key.pub")

    def judged(origin: str) -> list[type]:
        """Return the errors about a key that something names."""
        return [type(error) for error in signature(job, "/image.sif", here, folder, origin)]

    above = tmp_path / "key.pub"
    above.touch()
    assert judged("toolkit.toml") == []
    give(above)
    assert judged("toolkit.toml") == [UntrustedError]
    assert judged("--signature-key") == []
    (folder / "key.pub").touch()
    give(folder / "key.pub")
    assert judged("job.toml") == [], "the user named the folder that names its key"
    assert judged("site strict") == [UntrustedError]
    assert verified == [str(above), str(above), str(folder / "key.pub")]


@pytest.mark.parametrize("trusted", [".", "/a:ours", "~no-such-user/ours"])
def test_a_relative_path_is_not_trusted_wherever_the_user_is(trusted, tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_TRUST", trusted)
    with pytest.raises(UsageError, match="is not an absolute path"):
        require_trusted(tmp_path)


def test_what_is_made_between_the_look_and_the_reading_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "toolkit.toml"

    def slow(path: Path, **options: bool) -> None:
        try:
            require_trusted(path, **options)
        finally:
            path.write_text('site = "evil"')

    monkeypatch.setattr(trust, "require_trusted", slow)
    with pytest.raises(ConfigError, match="No such file"):
        read_toml(path, Job)
