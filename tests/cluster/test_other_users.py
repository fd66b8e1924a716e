"""What another user of the machine can do, tried by real second users."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import Tiny, tidied
from tests.cluster.ordinary_user import becoming, change_accounts
from toolkit.errors import ConfigError, UntrustedError
from toolkit.planning.settings import chosen

GROUP = f"tkg{os.getpid()}"
USERS = (f"tka{os.getpid()}", f"tkb{os.getpid()}")


@pytest.fixture(scope="module")
def group() -> Iterator[str]:
    """A group with two ordinary users who may build images."""
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    change_accounts("groupadd", GROUP)
    try:
        for name in USERS:
            options = f"--create-home --home-dir /var/tmp/{name} --groups {GROUP}".split()
            change_accounts("useradd", *options, name)
            change_accounts("apptainer", "config", "fakeroot", "--add", name)
        yield GROUP
    finally:
        for name in USERS:
            change_accounts("apptainer", "config", "fakeroot", "--remove", name, check=False)
            change_accounts("userdel", "--remove", name, check=False)
        change_accounts("groupdel", GROUP, check=False)


@pytest.fixture
def shared_store(group: str, tiny_base: str) -> Iterator[tuple[Tiny, Tiny]]:
    """One directory of images, seen by two users of its group."""
    with tempfile.TemporaryDirectory(prefix="toolkit-test-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o711)
        first, second = (
            Tiny(place, tiny_base, becoming(user), {"HOME": f"/var/tmp/{user}"}) for user in USERS
        )
        for _ in tidied(first):
            shutil.chown(first.images, USERS[0], group)
            first.images.chmod(0o2775)
            yield first, second


def test_two_users_build_in_one_directory_of_images(shared_store):
    first, second = shared_store
    recipe = first.recipe("echo one > /greeting")
    done = first.run("build", recipe)
    assert done.returncode == 0, done.stderr
    assert first.images.joinpath("tiny.sif").owner() == USERS[0]

    again = second.run("build", recipe)
    assert again.returncode == 0, again.stderr
    first.recipe("echo two > /greeting")
    changed = second.run("build", recipe)
    assert changed.returncode == 0, changed.stderr
    assert second.images.joinpath("tiny.sif").owner() == USERS[1]
    assert second.inside("/bin/cat", "/greeting") == "two\n"
    back = first.run("build", recipe, "--force")
    assert back.returncode == 0, back.stderr
    for user in (first, second):
        for words in (("list",), ("cache", "--clear"), ("prune", "--older-than", "1d")):
            done = user.run(*words)
            assert done.returncode == 0, (words, done.stderr)


def test_what_one_builds_another_neither_removes_nor_reads_by_half(shared_store):
    """Two users of a group; one who only reads the directory copies from it all the same."""
    first, second = shared_store
    assert first.run("build", first.recipe("echo one > /greeting")).returncode == 0
    lock = (first.images / ".tiny.lock").stat()
    recipe = first.recipe("sleep 300 || true", "echo two > /greeting")
    building = first.started("--force", recipe, until="+ sleep 300")
    refused = second.run("remove", "tiny")
    assert refused.returncode == 75, refused.stderr
    assert f"tiny is being built by process {building.pid}" in refused.stderr
    pruned = second.run("prune", "--older-than", "0d")
    assert (pruned.returncode, "kept: the image tiny is being built" in pruned.stdout) == (0, True)
    copying = second.run("copy", "tiny", f"/var/tmp/{USERS[1]}")
    assert copying.returncode == 0, copying.stderr
    copied = Path("/var/tmp", USERS[1], "tiny.sif")
    assert copied.read_bytes() == (first.images / "tiny.sif").read_bytes(), "it is there as it was"
    first.wake()
    assert building.wait(120) == 0
    signed = second.run("prune", "--older-than", "0d")
    assert signed.returncode == 0, signed.stderr
    assert second.left() == []
    assert (first.images / ".tiny.lock").stat().st_ino == lock.st_ino

    assert first.run("build", first.recipe("echo three > /greeting")).returncode == 0
    (first.images / ".tiny.lock").chmod(0o600)
    first.images.chmod(0o755)
    again = second.run("copy", "tiny", f"/var/tmp/{USERS[1]}")
    assert again.returncode == 0, again.stderr
    assert copied.read_bytes() == (first.images / "tiny.sif").read_bytes()


@pytest.fixture
def public(group: str) -> Iterator[Path]:
    """A directory of ours whose way every user may go, with a name that nobody can guess."""
    del group
    with tempfile.TemporaryDirectory(prefix="tk", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_user(name: str, *words: str, cwd: Path | str = "/") -> subprocess.CompletedProcess[str]:
    """Run a command as another user, who has no privileges."""
    become = (
        *"setpriv --reuid".split(),
        name,
        "--regid",
        name,
        *"--init-groups --inh-caps=-all --bounding-set=-all".split(),
    )
    return subprocess.run(
        [*become, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_project_file_of_another_user_is_not_obeyed(public, toolkit, toolkit_env):
    trap = public / "scratch"
    trap.mkdir()
    trap.chmod(0o1777)
    (trap / "mine").mkdir()
    (trap / "mine" / "train.py").touch()
    run = ("run", "--dry-run", "--image", "pytorch_cpu", "train.py")
    text = 'env = { LD_PRELOAD = "/var/tmp/evil.so" }'
    assert as_user(USERS[0], "sh", "-c", f"echo '{text}' > toolkit.toml", cwd=trap).returncode == 0
    done = toolkit(*run, cwd=trap / "mine")
    assert done.returncode == 94, done.stderr
    assert f"{trap}/toolkit.toml" in done.stderr
    assert f"user {USERS[0]}" in done.stderr

    # The same through a link of theirs to a file of ours, and in a directory of ours that they may
    # write to.
    (public / "own.toml").write_text("nodes = 2\n")
    assert (
        as_user(
            USERS[0],
            "sh",
            "-c",
            f"rm toolkit.toml && ln -s {public}/own.toml toolkit.toml",
            cwd=trap,
        ).returncode
        == 0
    )
    linked = toolkit(*run, cwd=trap / "mine")
    assert (
        linked.returncode,
        "symbolic link" in linked.stderr or "belongs to" in linked.stderr,
    ) == (94, True), linked.stderr
    assert as_user(USERS[0], "rm", "toolkit.toml", cwd=trap).returncode == 0
    (trap / "mine" / "toolkit.toml").write_text(text)
    shutil.chown(trap / "mine", group=GROUP)
    (trap / "mine").chmod(0o2775)
    writable = toolkit(*run, cwd=trap / "mine")
    assert (writable.returncode, f"group {GROUP}" in writable.stderr) == (94, True), writable.stderr
    assert f"chmod g-w {trap}/mine" in writable.stderr
    trusting = toolkit(
        *run, cwd=trap / "mine", env={**toolkit_env, "TOOLKIT_TRUST": str(trap / "mine")}
    )
    assert trusting.returncode != 94, trusting.stderr


def test_a_file_that_is_exchanged_all_the_time_is_never_obeyed(public):
    """Another user swaps links to our files and files of their own while we look."""
    trap = public / "race"
    trap.mkdir()
    trap.chmod(0o1777)
    (trap / "mine").mkdir()
    (public / "own.toml").write_text('site = "linked"\n')
    swap = f"while :; do ln -sfn {public}/own.toml toolkit.toml; echo 'site = \"evil\"' > x; mv -f x toolkit.toml; rm -f toolkit.toml; done"
    become = ("setpriv", "--reuid", USERS[0], "--regid", USERS[0], "--init-groups")
    swapping = subprocess.Popen([*become, "bash", "-c", swap], cwd=trap, stderr=subprocess.DEVNULL)
    seen: dict[str, int] = {}
    try:
        while sum(seen.values()) < 3000 or seen.get("refused", 0) <= 50:
            try:
                found = str(chosen(trap / "mine").site)
            except UntrustedError:
                found = "refused"
            except ConfigError:
                found = "gone"  # between the search and the reading
            seen[found] = seen.get(found, 0) + 1
    finally:
        swapping.kill()
        swapping.wait()
    assert set(seen) <= {"refused", "gone", "auto"}, seen


def test_an_instructors_exercise_runs_in_a_directory_that_students_only_read(public, user):
    exercise = public / "exercise"
    exercise.mkdir()
    text = 'script = "train.py"\nlauncher = "none"\nimage = "pytorch_22.03"\n'
    (exercise / "job.toml").write_text(text)
    (exercise / "train.py").write_text("print('hello')\n")
    for path in (exercise, exercise / "job.toml", exercise / "train.py"):
        shutil.chown(path, USERS[0])
    done = user.toolkit("run", "--dry-run", "--site", "neuron", str(exercise))
    assert done.returncode == 0, done.stderr


def test_a_cluster_does_not_start_where_others_can_write(public, toolkit, toolkit_env):
    def prepared(name: str, *, owner: str, mode: int) -> Path:
        directory = public / name
        directory.mkdir()
        shutil.chown(directory, owner)
        directory.chmod(mode)
        return directory

    theirs = prepared("theirs", owner=USERS[0], mode=0o777)
    open_to_all = prepared("open", owner="root", mode=0o777)
    sticky = prepared("sticky", owner="root", mode=0o1777)
    assert as_user(USERS[0], "mkdir", "-m", "777", "local", cwd=sticky).returncode == 0
    assert as_user(USERS[0], "ln", "-s", str(public), "link", cwd=sticky).returncode == 0
    for place in (theirs, open_to_all, sticky, sticky / "link"):
        env = {**toolkit_env, "TOOLKIT_CLUSTER": "local", "TOOLKIT_CLUSTER_DIR": str(place)}
        up = toolkit("cluster", "up", "--nodes", "1", env=env)
        assert up.returncode == 94, (place, up.stderr)
        assert not list((place / "local").glob("etc"))


def fails(done: subprocess.CompletedProcess[str], *reasons: str) -> None:
    assert done.returncode != 0, done.stdout
    assert any(reason in done.stderr for reason in reasons), done.stderr


def test_nobody_else_reaches_the_database_of_a_cluster(public, user):
    clusters = public / "c"
    clusters.mkdir()
    env = {"TOOLKIT_CLUSTER_DIR": str(clusters), "TOOLKIT_CLUSTER": "db"}
    shutil.chown(clusters, user.name)
    name = user.name

    def call(*words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return user.toolkit(*words, env=env, timeout=timeout)

    other = USERS[1]
    try:
        up = call("cluster", "up", "--nodes", "1", "--accounting", timeout=300)
        assert up.returncode == 0, up.stderr
        directory = clusters / "db"
        assert directory.stat().st_mode & 0o777 == 0o700
        socket = f"--socket={directory}/db/mysql.sock"
        ask = ("mariadb", "--no-defaults", socket, "--execute", "select current_user()")
        fails(as_user(other, *ask, f"--user={name}"), "Can't connect")
        fails(as_user(other, "munge", "-n", f"--socket={directory}/run/munge.socket"), "")

        # Even with every door open, the database asks the kernel who is there.
        for path in (directory, directory / "db"):
            path.chmod(0o755)
        for account in (name, "root", "slurm", other, ""):
            fails(as_user(other, *ask, f"--user={account}"), "Access denied")
        owner = ("runuser", "-u", name, "--")
        mine = (
            *owner,
            *"mariadb --no-defaults".split(),
            socket,
            f"--user={name}",
            *"--skip-column-names --execute".split(),
        )

        def sql(text: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*mine, text], capture_output=True, text=True, check=False, timeout=60
            )

        assert sql("select current_user()").stdout.strip() == f"{name}@localhost"
        fails(sql(f"select 'x' into outfile '{public}/written'"), "secure-file-priv")
        fails(
            sql("load data infile '/etc/passwd' into table slurm_acct_db.acct_table"),
            "secure-file-priv",
        )
        assert sql("select load_file('/etc/passwd')").stdout.strip() == "NULL"
        assert not (public / "written").exists()
        listening = call("cluster", "exec", "--", "ss", "-Hltnp").stdout
        assert "mariadbd" not in listening, listening
        assert ":3306 " not in listening

        assert call("cluster", "exec", "--", "srun", "--job-name=counted", "true").returncode == 0
        ask_slurm = "until sacct -X -n -P --format=JobName,State | grep 'counted|COMPLETED'; do sleep 0.5; done"
        assert (
            call("cluster", "exec", "--", "timeout", "60", "bash", "-c", ask_slurm).returncode == 0
        )
    finally:
        call("cluster", "down")
    assert not (clusters / "db").exists()
