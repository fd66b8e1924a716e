"""What another user could have written, or can exchange, is not obeyed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.test_cli import said
from toolkit import sites, trust
from toolkit.errors import ConfigError, UntrustedError, UsageError
from toolkit.files import read_toml
from toolkit.images.registry import registry
from toolkit.images.store.signatures import signature
from toolkit.model.job import Job
from toolkit.planning.settings import chosen
from toolkit.runs.submit import reserve
from toolkit.trust import require_trusted

ME, OTHER, NOBODY, MINE, PROJECT = 1000, 1001, 65534, 1000, 2000
DIRECTORY, FILE, LINK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK


class Named:
    """An entry of the databases of users and groups."""

    def __init__(self, name: str, members: list[str] | None = None) -> None:
        self.pw_name = self.gr_name = name
        self.gr_mem = members or []


Entry = tuple[int, int, int]  # type and mode, owner, group
Give = Callable[[Path], None]


def directory(owner: int = ME, mode: int = 0o755, group: int = MINE) -> Entry:
    return DIRECTORY | mode, owner, group


def file(owner: int = ME, mode: int = 0o644, group: int = MINE) -> Entry:
    return FILE | mode, owner, group


ROOTS = directory(owner=0, group=0)
TMP = directory(owner=0, mode=0o1777, group=0)
HIDDEN = directory(owner=NOBODY, group=NOBODY)  # root's or another user's, in a user namespace


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return who else could exchange the last of some entries, which are below each other."""

    def verdict(*entries: Entry, user: int = ME, root: Entry = ROOTS, trusted: str = "") -> str:
        names = ("/", "/tmp", "/tmp/b", "/tmp/b/c", "/tmp/b/c/d")
        statuses = {
            name: os.stat_result((mode, 0, 0, 0, uid, gid, 0, 0, 0, 0))
            for name, (mode, uid, gid) in zip(names, (root, *entries), strict=False)
        }

        def status_of(path: Path, **_: object) -> os.stat_result:
            if str(path) not in statuses:
                raise FileNotFoundError(path)
            return statuses[str(path)]

        with monkeypatch.context() as patch:
            patch.setenv("TOOLKIT_TRUST", trusted)
            patch.setattr(Path, "stat", status_of)
            patch.setattr(Path, "lstat", status_of)
            patch.setattr(os.path, "realpath", lambda path: os.path.normpath(path))
            patch.setattr(os, "geteuid", lambda: user)
            patch.setattr(trust, "_is_private", lambda gid: gid == 0 or gid == MINE == user)
            try:
                require_trusted(Path(names[len(entries)]))
            except UntrustedError as error:
                words = {"belongs to": "owner", "the members": "group", "every user": "others"}
                return next(who for word, who in words.items() if word in error.cause)
            return ""

    return verdict


@pytest.mark.parametrize(
    ("entries", "user", "writers"),
    [
        # The user and root are trusted, everybody else is not; root trusts root alone.
        ([directory(), file()], ME, ""),
        ([directory(), file(owner=0)], ME, ""),
        ([directory(), file(owner=OTHER)], ME, "owner"),
        ([directory(owner=OTHER), file()], ME, "owner"),
        ([directory(owner=OTHER), directory(), directory(), file()], ME, "owner"),
        ([ROOTS, file(owner=0, group=0)], 0, ""),
        ([ROOTS, directory(), file(owner=0)], 0, "owner"),
        ([ROOTS, directory(), directory()], 0, "owner"),
        # Nobody else may write to a directory or file.
        ([directory(), file(mode=0o646)], ME, "others"),
        ([directory(mode=0o757), file()], ME, "others"),
        ([directory(owner=0, mode=0o757), directory(), file()], ME, "others"),
        # A sticky directory keeps others from what is in it, but not its owner.
        ([TMP, file()], ME, ""),
        ([TMP, directory(), directory()], ME, ""),
        ([directory(mode=0o1777), directory()], ME, ""),
        ([TMP, file(owner=OTHER)], ME, "owner"),
        ([directory(owner=OTHER, mode=0o1777), directory()], ME, "owner"),
        ([directory(owner=OTHER), directory(OTHER, mode=0o1777), directory()], ME, "owner"),
        # Others can still put something into it.
        ([TMP], ME, "others"),
        ([directory(), directory(mode=0o1777)], ME, "others"),
        ([directory(), directory(mode=0o1770, group=PROJECT)], ME, "group"),
        # A user's own group is like the user, a project's is not.
        ([directory(mode=0o775), file(mode=0o664)], ME, ""),
        ([directory(mode=0o775, group=0), file()], ME, ""),
        ([directory(), file(mode=0o664, group=PROJECT)], ME, "group"),
        ([directory(owner=0, mode=0o2770, group=PROJECT), directory(), file()], ME, "group"),
        ([directory(owner=0, mode=0o3770, group=PROJECT), directory(), file()], ME, ""),
        ([directory(), directory(mode=0o2775, group=PROJECT)], ME, "group"),
        ([directory(mode=0o775), file()], 0, "owner"),
        # What nobody can have made at the path is for whoever creates it to examine.
        ([directory()], ME, ""),
    ],
)
def test_who_could_exchange_it(entries, user, writers, verdict):
    assert verdict(*entries, user=user) == writers


@pytest.mark.parametrize(
    ("entries", "writers"),
    [
        # Root's directories look like another user's. They may lead to what is the user's own.
        ([HIDDEN, directory(), file()], ""),
        ([HIDDEN, HIDDEN, directory(), directory()], ""),
        ([HIDDEN, file(owner=NOBODY)], "owner"),
        ([HIDDEN, HIDDEN], "owner"),
        # Where all write, only /tmp and its like are known to be root's.
        ([directory(NOBODY, mode=0o1777), directory(), file()], ""),
        ([directory(NOBODY, mode=0o1777), HIDDEN, file()], "owner"),
        ([HIDDEN, directory(NOBODY, mode=0o1777), directory()], "others"),
        ([HIDDEN, directory(NOBODY, mode=0o775, group=NOBODY), directory()], "group"),
        ([HIDDEN, directory(OTHER), directory()], "owner"),
    ],
)
def test_in_a_user_namespace_hidden_owners_may_lead_to_what_is_ones_own(entries, writers, verdict):
    assert verdict(*entries, root=HIDDEN) == writers
    if HIDDEN in entries:
        assert verdict(*entries) == "owner", "outside of a namespace, the user is nobody"


@pytest.mark.parametrize(
    ("entries", "trusted", "writers"),
    [
        ([directory(OTHER), directory(OTHER), file(OTHER)], "", "owner"),
        ([directory(OTHER), directory(OTHER), file(OTHER)], "/tmp/b", ""),
        ([directory(OTHER), directory(OTHER), file(OTHER)], "/nowhere:/tmp:/else", ""),
        ([directory(OTHER), directory(OTHER), file(OTHER)], "/tmp/b/c", ""),
        ([directory(OTHER), directory(OTHER), file(OTHER)], "/tmp/b/d", "owner"),
        ([directory(OTHER), directory(ME), file(ME)], "/tmp/b2", "owner"),
        ([directory(0, 0o2770, PROJECT), directory(), directory()], "", "group"),
        ([directory(0, 0o2770, PROJECT), directory(), directory()], "/tmp", ""),
        ([directory(0, 0o2770, PROJECT), directory(OTHER), directory()], "/tmp", ""),
        ([directory(0, 0o2770, PROJECT), directory()], "/tmp/c", "group"),
    ],
)
def test_what_the_user_trusts_is_obeyed_and_nothing_beside_it(entries, trusted, writers, verdict):
    assert verdict(*entries, trusted=trusted) == writers


def test_a_group_is_private_if_it_is_the_users_own_or_roots_and_has_no_other_member(monkeypatch):
    groups = {
        0: ("root", []),
        5: ("staff", []),
        MINE: ("me", []),
        1001: ("me", ["me", "you"]),
        PROJECT: ("ours", ["me"]),
    }
    users = {ME: ("me",)}
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: Named(*users[uid]))
    monkeypatch.setattr("grp.getgrgid", lambda gid: Named(*groups[gid]))
    assert [gid for gid in (*groups, 4711) if trust._is_private(gid)] == [0, MINE]
    users.clear()
    assert not trust._is_private(MINE), "a user whom this machine does not know"


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


def nodes(path: Path) -> object:
    """Return a setting of a file that was found by searching."""
    return read_toml(path, Job).nodes


@pytest.mark.parametrize("which", ["file", "directory", "link", "place", "first", "between", "way"])
def test_each_step_of_the_way_counts(which, tmp_path, give):
    """As written and as it leads: a job hours later goes it again."""
    for name in ("project", "elsewhere", "crossing"):
        (tmp_path / name).mkdir()
    target = tmp_path / "elsewhere" / "settings"
    target.write_text("nodes = 2\n")
    link, between = tmp_path / "project" / "toolkit.toml", tmp_path / "crossing" / "link"
    link.symlink_to("../crossing/link")
    between.symlink_to(target)
    (tmp_path / "first").symlink_to("project")
    path = tmp_path / "first" / "toolkit.toml"
    assert nodes(path) == 2
    parts = {
        "file": target,
        "directory": target.parent,
        "link": link,
        "place": link.parent,
        "first": tmp_path / "first",
        "between": between,
        "way": between.parent,
    }
    give(parts[which])
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
    course.chmod(0o1777)
    assert nodes(file) == 2
    file.chmod(0o666)
    assert refused("can write to it") == f"chmod o-w {file}"
    file.chmod(0o644)
    course.chmod(0o2770)
    with monkeypatch.context() as patch:
        patch.setattr(trust, "_is_private", lambda _: False)
        step = refused("members of group")
        patch.setenv("TOOLKIT_TRUST", "/kept")
        assert f'export TOOLKIT_TRUST="$TOOLKIT_TRUST":{course}' in refused("members of group")
    assert f"chmod g-w {course}; or " in step
    assert f"export TOOLKIT_TRUST={course}" in step
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
    text = 'site = "neuron"\n[env]\nLD_PRELOAD = "/tmp/evil.so"\n[registries]\n"nvcr.io" = "evil.example/x"\n'
    (tmp_path / "toolkit.toml").write_text(text)
    monkeypatch.chdir(below)
    assert chosen(below).site == "neuron"
    assert registry.read_mirrors() == {"nvcr.io": "evil.example/x"}
    give(tmp_path / "toolkit.toml")
    for read in (lambda: chosen(below).site, registry.read_mirrors):
        with pytest.raises(UntrustedError, match="belongs to user"):
            read()
    (below / "train.py").touch()
    code, _, error = said("run", "--dry-run", "train.py")
    assert code == 94
    assert f"{tmp_path / 'toolkit.toml'}" in error
    (below / "toolkit.toml").touch()
    assert chosen(below).site == "auto", "one's own file hides it"


@pytest.mark.parametrize("kind", ["sites/ours.toml", "toolkit.toml", "explain/ours.toml"])
def test_files_of_the_configuration_are_held_to_it(kind, tmp_path, monkeypatch):
    from toolkit.explain.gather import rules

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "toolkit" / kind
    file.parent.mkdir(parents=True)
    file.write_text('name = "ours"\n' if "sites" in kind else "")
    file.chmod(0o666)
    read = {
        "sites/ours.toml": lambda: sites.load("ours"),
        "toolkit.toml": lambda: chosen(tmp_path).site,
        "explain/ours.toml": rules,
    }[kind]
    with pytest.raises(UntrustedError, match="can write to it"):
        read()
    if "sites" in kind:
        assert sites.from_file(file).name == "ours", (
            "a file that the user names is the user's decision"
        )


def test_the_key_of_a_signature_is_not_taken_from_another_user(tmp_path, give, monkeypatch):
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


@pytest.mark.parametrize("trusted", [".", "ours", "/a:ours", "~no-such-user/ours"])
def test_a_relative_path_is_not_trusted_wherever_the_user_is(trusted, tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_TRUST", trusted)
    with pytest.raises(UsageError, match="is not an absolute path"):
        require_trusted(tmp_path)


def test_what_is_made_between_the_look_and_the_reading_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "toolkit.toml"
    look = trust.require_trusted

    def slow(path: Path, **options: bool) -> None:
        try:
            look(path, **options)
        finally:
            path.write_text('site = "evil"')

    monkeypatch.setattr(trust, "require_trusted", slow)
    with pytest.raises(ConfigError, match="No such file"):
        read_toml(path, Job)
