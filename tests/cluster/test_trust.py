"""Runs start where nobody else can exchange them, tried by a real second user and a real group."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.ordinary_user import User, account, as_user, change_accounts
from toolkit.errors import ConfigError, UntrustedError
from toolkit.runs.submit import reserve

ADVERSARY, GROUP = f"tkv{os.getpid()}", f"tkp{os.getpid()}"
RUN = "run --runtime none --launcher none"


class Victim(NamedTuple):
    """An ordinary user of a project's group, with a cluster."""

    user: User
    env: dict[str, str]

    def run(self, where: Path, *words: str, before: str = "", **env: str) -> tuple[int, str]:
        """Run the toolkit in a directory; return its exit code and what it says."""
        command = shlex.join((self.user.python, "-m", "toolkit", *RUN.split(), *words))
        line = f"{before}\ncd {shlex.quote(str(where))} && exec {command}"
        done = self.user.run("bash", "-c", line, env={**self.env, **env})
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def victim(user: User) -> Iterator[Victim]:
    if os.geteuid() != 0:
        pytest.skip("only root can make users")
    env = {"TOOLKIT_CLUSTER_DIR": str(user.home / "trust")}
    change_accounts("groupadd", GROUP)
    try:
        with account(ADVERSARY, "--no-create-home"):
            change_accounts("usermod", "--append", "--groups", GROUP, user.name)
            up = user.toolkit("cluster", "up", "--nodes", "1", env=env)
            assert up.returncode == 0, up.stderr
            yield Victim(user, env)
            user.toolkit("cluster", "down", env=env)
            change_accounts("gpasswd", "--delete", user.name, GROUP, check=False)
    finally:
        change_accounts("groupdel", GROUP, check=False)


@pytest.fixture
def scratch(victim: Victim) -> Iterator[Path]:
    """A directory as a site gives it to all of its users, with a script of the victim."""
    del victim
    with tempfile.TemporaryDirectory(prefix="tk", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "scratch").mkdir()
        (place / "scratch").chmod(0o1777)
        (place / "train.py").write_text("import sys\nprint('trained', 'evil' in sys.modules)\n")
        yield place / "scratch"


def as_adversary(text: str, cwd: Path) -> None:
    done = as_user(ADVERSARY, "bash", "-euc", text, cwd=cwd)
    assert done.returncode == 0, done.stderr


def everything(place: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in (place, *place.rglob("*"))}


PREPARED = """
mkdir -p runs/train-0001/report runs/train-0002/report
for run in runs/*; do
    echo 'import evil' >$run/report/sitecustomize.py
    echo '{"container": {"prefix": ""}}' >$run/plan.json
    echo '{"script": "'$PWD'/evil.py"}' >$run/job.json
done
echo 'print("evil")' >evil.py
"""
# A copy of a run whose submission seems to have been interrupted, so that the next would resume it.
INTERRUPTED = """
mkdir runs/train-0009
cp runs/train-0003/{plan,job}.json runs/train-0009
echo '{"mark": "toolkit-0", "site": "local", "submitted": "2099-01-01T00:00:00+00:00"}' >runs/train-0009/attempt.json
"""
# What another user makes, where the victim works then, and what the refusal names.
TRAPS = {
    "a sticky directory of runs": ("mkdir course; mkdir -m 1777 course/runs", "course", "course"),
    "runs in a directory of all": ("mkdir -m 1777 runs", "", "runs"),
    "a link to runs": ("mkdir -m 777 evil; ln -s evil runs", "", "runs"),
    "prepared runs": (f"mkdir course; cd course; {PREPARED} chmod 1777 runs", "course", "course"),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_run_is_not_started_where_another_user_can_exchange_it(
    trap, victim, scratch, toolkit, cluster
):
    del cluster
    made, where, named = TRAPS[trap]
    as_adversary(made, scratch)
    before, script = everything(scratch), f"{scratch.parent}/train.py"
    user = victim.run(victim.user.home, script, TOOLKIT_RUNS=f"{scratch / where}/runs")
    done = toolkit(*RUN.split(), script, cwd=scratch / where)
    for code, said in (user, (done.returncode, done.stderr)):
        assert code == 94, said
        assert f"{scratch / named} belongs to user {ADVERSARY}" in said
        assert everything(scratch) == before


def test_a_run_that_another_user_prepared_is_neither_repeated_nor_resumed(victim, scratch):
    """The directory of runs is the site's; in it are runs of everybody."""
    (scratch / "runs").mkdir()
    (scratch / "runs").chmod(0o1777)
    as_adversary(PREPARED, scratch)
    before = everything(scratch / "runs/train-0001")
    for words in (
        ["runs/train-0001"],
        ["train-0002"],
        [f"{scratch}/runs/train-0001"],
        ["--failed", "runs/train-0001"],
        ["--after", "train-0001", f"{scratch.parent}/train.py"],
    ):
        code, said = victim.run(scratch, *words)
        assert code == 94, said
        assert f"is not trusted: it belongs to user {ADVERSARY}" in said
    code, said = victim.run(scratch, f"{scratch.parent}/train.py")
    assert (code, "trained False" in said) == (0, True), said
    assert (scratch / "runs/train-0003/job.sbatch").owner() == victim.user.name
    assert everything(scratch / "runs/train-0001") == before
    as_adversary(INTERRUPTED, scratch)
    before = everything(scratch / "runs/train-0009")
    code, said = victim.run(scratch, f"{scratch.parent}/train.py")
    assert (code, "train-0010" in said, "train-0009" in said) == (0, True, False), said
    assert everything(scratch / "runs/train-0009") == before
    assert victim.run(scratch, "runs/train-0003")[0] == 0


def test_the_directory_of_a_group_is_refused_until_it_is_trusted(victim, scratch):
    ours = scratch.parent / "ours"
    ours.mkdir()
    shutil.chown(ours, group=GROUP)
    ours.chmod(0o2770)
    work = ours / "me"
    before = f"umask 002; mkdir -p {work}"
    code, said = victim.run(work, f"{scratch.parent}/train.py", before=before)
    assert code == 94, said
    assert f"the members of group {GROUP} can write to {ours}" in said
    assert f"export TOOLKIT_TRUST={ours}" in said
    assert list(work.iterdir()) == []
    trusting = {"TOOLKIT_TRUST": str(ours)}
    code, said = victim.run(work, f"{scratch.parent}/train.py", before=before, **trusting)
    assert (code, "trained False" in said) == (0, True), said
    assert (work / "runs").stat().st_mode & 0o7777 == 0o2775, "the group shares it"
    assert victim.run(work, "runs/train-0001", before=before, **trusting)[0] == 0
    assert victim.run(work, "runs/train-0001")[0] == 94


def test_runs_that_are_exchanged_all_the_time_are_never_taken(scratch):
    """Another user makes and removes `runs`, a directory and a link, while we look and create."""
    (scratch.parent / "own").mkdir()
    link = f"ln -s {scratch.parent}/own runs; rm runs"
    swap = f"mkdir -m 777 evil; while :; do mkdir -m 777 runs; rmdir runs; ln -s evil runs; rm runs; {link}; done"
    become = f"setpriv --reuid {ADVERSARY} --regid {ADVERSARY} --init-groups bash -c".split()
    swapping = subprocess.Popen([*become, swap], cwd=scratch, stderr=subprocess.DEVNULL)
    runs = scratch / "runs"
    refused = created = 0
    try:
        while refused < 300 or created < 30:
            try:
                if not reserve(runs / "a-0001"):
                    continue
            except (UntrustedError, ConfigError):  # the latter: a link where the directory was
                refused += 1
            except OSError:
                continue  # it was there, and has gone
            else:
                created += 1
                assert (runs.is_symlink(), runs.stat().st_uid) == (False, os.geteuid())
                shutil.rmtree(runs)
    finally:
        swapping.kill()
        swapping.wait()
    assert not any((scratch.parent / "own").iterdir())
    assert not any((scratch / "evil").iterdir())


CREATE = """
import sys
from pathlib import Path
from toolkit.errors import UntrustedError
from toolkit.runs.submit import reserve
for place in sys.argv[1:]:
    try:
        print(reserve(Path(place)))
    except UntrustedError as error:
        print(error.cause)
"""


@pytest.mark.parametrize("how", ["--map-root-user", "cluster"])
def test_in_a_user_namespace_ones_own_is_trusted_and_another_users_is_not(how, victim, scratch):
    """There root's directories, such as /home, look as another user's."""
    user, theirs = victim.user, Path("/home", ADVERSARY)
    own = Path(user.run("mktemp", "-d", "/var/tmp/tkXXXXXX").stdout.strip())
    trap, shared = theirs / "course/runs", scratch / "shared"
    places = [place / "a-0001" for place in (user.home / how / "runs", own / "runs", trap, shared)]
    enter = (user.python, "-m", "toolkit", "cluster", "exec", "--")
    try:
        theirs.mkdir()
        shutil.chown(theirs, ADVERSARY)
        as_adversary("mkdir course; mkdir -m 1777 course/runs", theirs)
        become = enter if how == "cluster" else ("unshare", "--user", how)
        done = user.run(*become, user.python, "-c", CREATE, *map(str, places), env=victim.env)
        assert not any(trap.iterdir())
    finally:
        shutil.rmtree(own)
        shutil.rmtree(theirs)
    *made, trapped, unknown = done.stdout.splitlines()
    assert made == ["True", "True"], done.stderr
    assert f"every user of this machine can write to {trap}" in trapped
    assert f"{scratch.parent} belongs to user" in unknown
