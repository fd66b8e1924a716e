"""What another user of the machine can do, tried by real second users."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.image_fixtures import Tiny, tidied
from tests.cluster.ordinary_user import account, as_user, becoming, change_accounts
from tests.cluster.ranks import ran

GROUP = f"tkg{os.getpid()}"
USERS = (f"tka{os.getpid()}", f"tkb{os.getpid()}")


@pytest.fixture(scope="module")
def group() -> Iterator[str]:
    """A group with two ordinary users who may build images."""
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    fakeroot = ("apptainer", "config", "fakeroot")
    with contextlib.ExitStack() as stack:
        change_accounts("groupadd", GROUP)
        stack.callback(change_accounts, "groupdel", GROUP, check=False)
        for name in USERS:
            options = f"--create-home --home-dir /var/tmp/{name} --groups {GROUP}".split()
            stack.enter_context(account(name, *options))
            change_accounts(*fakeroot, "--add", name)
            stack.callback(change_accounts, *fakeroot, "--remove", name, check=False)
        yield GROUP


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

    # The same in a directory of ours that they may write to.
    assert as_user(USERS[0], "rm", "toolkit.toml", cwd=trap).returncode == 0
    (trap / "mine" / "toolkit.toml").write_text(text)
    shutil.chown(trap / "mine", group=GROUP)
    (trap / "mine").chmod(0o2775)
    writable = toolkit(*run, cwd=trap / "mine")
    assert (writable.returncode, f"group {GROUP}" in writable.stderr) == (94, True), writable.stderr
    env = {**toolkit_env, "TOOLKIT_TRUST": str(trap / "mine")}
    trusting = toolkit(*run, cwd=trap / "mine", env=env)
    assert trusting.returncode != 94, trusting.stderr


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
    places = {"theirs": (USERS[0], 0o777), "open": ("root", 0o777), "sticky": ("root", 0o1777)}
    for name, (owner, mode) in places.items():
        (public / name).mkdir()
        shutil.chown(public / name, owner)
        (public / name).chmod(mode)
    assert as_user(USERS[0], "mkdir", "-m", "777", "local", cwd=public / "sticky").returncode == 0
    for name in places:
        cluster = {"TOOLKIT_CLUSTER": "local", "TOOLKIT_CLUSTER_DIR": str(public / name)}
        up = toolkit("cluster", "up", "--nodes", "1", env={**toolkit_env, **cluster})
        assert up.returncode == 94, (name, up.stderr)
        assert not list((public / name / "local").glob("etc"))


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
        mine = ("runuser", "-u", name, "--", *"mariadb --no-defaults --skip-column-names".split())

        def sql(text: str) -> subprocess.CompletedProcess[str]:
            return ran(*mine, socket, f"--user={name}", "--execute", text)

        assert sql("select current_user()").stdout.strip() == f"{name}@localhost"
        load = "load data infile '/etc/passwd' into table slurm_acct_db.acct_table"
        for reach in (f"select 'x' into outfile '{public}/written'", load):
            fails(sql(reach), "secure-file-priv")
        assert sql("select load_file('/etc/passwd')").stdout.strip() == "NULL"
        assert not (public / "written").exists()
        listening = call("cluster", "exec", "--", "ss", "-Hltnp").stdout
        assert "mariadbd" not in listening, listening
        assert ":3306 " not in listening

        assert call("cluster", "exec", "--", "srun", "--job-name=counted", "true").returncode == 0
        ask_slurm = "until sacct -X -n -P --format=JobName,State | grep 'counted|COMPLETED'; do sleep 0.5; done"
        counted = call("cluster", "exec", "--", "timeout", "60", "bash", "-c", ask_slurm)
        assert counted.returncode == 0
    finally:
        call("cluster", "down")
    assert not (clusters / "db").exists()
