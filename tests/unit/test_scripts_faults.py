"""Generated scripts while things go wrong: signals that come twice, a controller that restarts, a full disk, ports that are taken.

Slurm's programs are stand-ins here, so that each fault comes at the moment that is meant;
tests/cluster has the real ones.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import LOCAL, make_case
from tests.unit.test_scripts import CONTAINER
from toolkit import scripts
from toolkit.planning.plan import decide

# A step that goes on until the file "leave" is there, and then ends with the code in it. A second
# one beside it signals the first.
STEP = """#!/bin/bash
[[ " $* " != *" --overlap "* ]] || { touch "$CAPTURE/signaled"; exit 0; }
trap '' USR1
touch "$CAPTURE/started"
until [[ -s $CAPTURE/leave ]]; do /bin/sleep 0.02; done
exit "$(<"$CAPTURE/leave")"
"""
# Waits are short here, but for the last one, which Slurm would end.
SLEEP = """#!/bin/bash
[[ $1 != infinity ]] || exec /bin/sleep 30
exec /bin/sleep 0.02
"""
# Fails as often as the file says, as if the controller were away.
AWAY = """#!/bin/bash
echo "$*" >>"$CAPTURE/{name}.asked"
[[ $1 != show ]] || {{ echo localhost; exit; }}
left=$(<"$CAPTURE/{name}.away")
((left == 0)) || {{ echo $((left - 1)) >"$CAPTURE/{name}.away"; echo "Unable to contact slurm controller" >&2; exit 1; }}
{then}
"""


class Job:
    """A script that runs with stand-ins."""

    def __init__(
        self, directory: Path, job: dict[str, Any], away: dict[str, int], *, restarts: int = 0
    ) -> None:
        self.directory = directory
        self.run = directory / "runs/x-0001"
        programs = directory / "bin"
        programs.mkdir(exist_ok=True)
        (self.run / "logs").mkdir(parents=True, exist_ok=True)
        asked = {
            "scontrol": AWAY.format(name="scontrol", then='touch "$CAPTURE/requeued"'),
            "scancel": AWAY.format(name="scancel", then=":"),
            "squeue": AWAY.format(name="squeue", then="echo localhost"),
        }
        for name, text in {"srun": STEP, "sleep": SLEEP, "apptainer": CONTAINER, **asked}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        for name in asked:
            (directory / f"{name}.away").write_text(str(away.get(name, 0)))
        places = {"cwd": str(directory), "folder": str(directory), "run": str(self.run)}
        case = make_case({"launcher": "srun", **job}, manifest=None, **places)
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(directory),
            "CAPTURE": str(directory),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "localhost",
            "SLURM_NNODES": "1",
            "SLURMD_NODENAME": "localhost",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        (directory / "job.sbatch").write_text(scripts.script(decide(case)))
        self.process = subprocess.Popen(
            ("bash", "job.sbatch"),
            env=environment,
            cwd=directory,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_for(self, name: str) -> None:
        until = time.monotonic() + 30
        while not (self.directory / name).exists():
            assert time.monotonic() < until, (
                f"no {name}: {self.end() if self.process.poll() is not None else 'it runs'}"
            )
            time.sleep(0.01)

    def tell(self) -> None:
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)

    def leave(self, code: int) -> None:
        (self.directory / "leave").write_text(f"{code}\n")

    def asked(self, name: str) -> list[str]:
        return (self.directory / f"{name}.asked").read_text().splitlines()

    def end(self) -> tuple[int, str]:
        printed, _ = self.process.communicate(timeout=30)
        return self.process.returncode, printed

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


REQUEUED = {"requeue": True, "time": "4"}


def told(
    directory: Path, code: int, job: dict[str, Any], *, signals: int = 1, **away: int
) -> tuple[int, str]:
    """Return how a job ends that is told to stop, and whose ranks then end with a code."""
    running = Job(directory, {**REQUEUED, **job}, away)
    running.wait_for("started")
    for _ in range(signals):
        running.tell()
    running.leave(code)
    return running.end()


@pytest.mark.parametrize("signals", [1, 5])
def test_a_job_that_may_not_go_back_ends_with_its_ranks_code_however_often_it_is_told(
    signals, tmp_path
):
    """Each signal interrupts the shell's "wait", which must not be taken for the end of the ranks."""
    code, printed = told(tmp_path, 0, {"max_requeues": 1}, signals=signals)
    assert code == 0, printed
    assert "exit code 0" in printed


def test_ranks_that_end_with_0_after_the_signal_are_warned_of(tmp_path):
    """The script tells which signal came and what an exit code means, before anybody has to guess."""
    code, printed = told(tmp_path, 0, {})
    assert code == 0, printed
    for words in (
        "Slurm sent USR1, about 60 s before",
        "have 40 s to save",
        "exit code 0 means that they have finished",
        "warning: the ranks ended",
    ):
        assert words in printed


def test_a_requeue_that_slurm_refuses_for_good_ends_the_job_with_the_ranks_code(tmp_path):
    code, printed = told(tmp_path, 75, {}, scontrol=999)
    assert code == 75
    assert "did not put the job back" in printed


def test_a_controller_that_restarts_is_asked_again_to_put_the_job_back(tmp_path):
    job = Job(tmp_path, REQUEUED, {"scontrol": 3, "squeue": 2})
    job.wait_for("started")
    job.tell()
    job.wait_for("signaled")
    job.leave(75)
    job.wait_for("requeued")
    assert job.process.poll() is None, (
        "Slurm ends the shell, which must not end by itself before that"
    )
    assert len([line for line in job.asked("scontrol") if line.startswith("requeue")]) == 4
    assert len(job.asked("squeue")) == 3
    job.kill()


def test_a_retry_is_for_the_infrastructure_and_bounded(tmp_path):
    """An attempt that left its file was lost; the program's own failure, and too many losses, end the job."""
    job = Job(tmp_path, {"retry": 1}, {})
    job.wait_for("started")
    job.leave(3)
    assert job.end()[0] == 3
    assert not (tmp_path / "scontrol.asked").read_text().count("requeue")
    logs = job.run / "logs"
    assert not (logs / "7.0.open").exists()
    (logs / "7.lost").write_text("n1\n")
    (logs / "7.0.open").write_text("n2\n")
    code, printed = Job(tmp_path, {"retry": 1}, {}, restarts=1).end()
    assert (code, (logs / "7.lost").read_text()) == (87, "n1\nn2\n")
    assert "ended more attempts than --retry 1 allows" in printed


def test_who_is_told_of_the_end_gets_the_first_error_without_secrets(tmp_path, monkeypatch):
    """A notification that fails is a line of the log; a job that goes back into the queue tells nothing."""
    monkeypatch.setenv("LC_ALL", "C")
    notified = tmp_path / "notified"
    words = {"notify": f'echo "$NOTIFY_TEXT" >{notified}; exit 7', "env": {"TOK": 's3"cr\\et'}}
    job = Job(tmp_path, {**words, "secret": ("TOK",)}, {})
    job.wait_for("started")
    reports = job.run / "report"
    reports.mkdir()
    failure = '{{"kind": "exception", "time_ns": {}, "code": null, "chain": [{{"type": "{}", "module": "m", "message": "{}", "inner": ""}}]}}\n'
    (job.run / "secrets").write_text("export APPTAINERENV_TOK='s3\"cr\\et'\n")
    late = failure.format(time.time_ns() + 10**10, "OSError", "x")
    (reports / "n1").write_text(failure.format(1, "TypeError", "an attempt before") + late)
    (reports / "n2").write_text(
        failure.format(time.time_ns(), "KeyError", r"\"a\" s3\"cr\\et\n$(id) xx" + "한" * 200)
    )
    job.leave(3)
    code, printed = job.end()
    assert code == 3
    assert "warning: --notify failed with exit code 7" in printed
    assert re.fullmatch(
        r"x-0001, job 7: exit code 3 after 0 min; KeyError:  +a +\*{4} \$\(id\) xx한{9,}\n",
        notified.read_text("utf-8"),
    )
    notified.unlink()
    (tmp_path / "leave").unlink()
    (tmp_path / "started").unlink()
    job = Job(tmp_path, {**words, **REQUEUED, "retry": 1}, {})
    job.wait_for("started")
    job.tell()
    job.leave(75)
    job.wait_for("requeued")
    while job.process.poll() is None:  # one may come just before the shell begins to sleep
        os.killpg(job.process.pid, signal.SIGTERM)
        time.sleep(0.2)
    assert not notified.exists()
    assert not (job.run / "logs/7.0.open").exists(), "the attempt was not lost"


def test_an_elastic_job_asks_a_controller_that_restarts_for_its_nodes_until_it_answers(tmp_path):
    job = Job(tmp_path, {"launcher": "torchrun", "nodes": "1:2"}, {"squeue": 4})
    job.wait_for("started")
    job.leave(3)
    code, printed = job.end()
    assert code == 3, printed
    assert len(job.asked("squeue")) >= 5


# What differs from an ordinary node, as functions of its shell, and what the node says: empty if it has a copy afterwards.
NODES = {
    "ordinary": ("", ""),
    "full": ("stat() { case $* in *%a*) echo 0;; *) command stat \"$@\";; esac; }", "has no room for a whole copy"),
    "fills up": ("cp() { head -c 1 \"$1\" >\"$2\"; return 1; }", "has no room for a whole copy"),
    "bad disk": ("cp() { tr a b <\"$1\" >\"$2\"; }", "has no room for a whole copy"),
    "diskless": ("stat() { case $* in *%T*) echo tmpfs;; *) command stat \"$@\";; esac; }", "is memory"),
    "taken": ("mkdir() { ln -s /nowhere \"${@: -1}\"; }", "is not yours"),
}  # fmt: skip


DISK = 'stat() { case $* in *%T*) echo ext2/ext3;; *) command stat "$@";; esac; }'


def staging(place: Path) -> tuple[str, str]:
    """Return the part of a script that copies the image to a node's disk at ``place``, and the line that chooses."""
    site = replace(LOCAL, stage_directory=str(place))
    text = scripts.script(decide(make_case({"stage_image": True}, site=site, version="id-1")))
    (choice,) = (line for line in text.splitlines() if "image=$staged" in line)
    return text[text.index("export staged=") : text.index("export -f stage")], choice


@pytest.mark.parametrize(("directory", "is_used"), [("own", True), ("link", False)])
def test_a_copy_in_a_directory_of_another_user_is_not_run(directory, is_used, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/x.sif").touch()
    (tmp_path / "link").symlink_to(tmp_path / "own")
    copy = f"{tmp_path}/{directory}/x.sif"
    script = f"image=shared staged={copy}\n{staging(tmp_path)[1]}\necho $image"
    image = subprocess.check_output(["bash", "-c", script], text=True).strip()
    assert image == (copy if is_used else "shared")


def stage(place: Path, functions: str = "", job: int = 7) -> str:
    setting = f"image={place}/image.sif SLURM_JOB_ID={job}"
    script = f"set -euo pipefail\n{setting}\n{staging(place)[0]}\n{DISK}\n{functions}\nstage"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("functions", "says"), NODES.values(), ids=NODES)
def test_a_node_has_a_whole_copy_or_says_why_it_has_none(functions, says, tmp_path):
    (tmp_path / "image.sif").write_text("abc" * 1000)
    said = stage(tmp_path, functions)
    copies = list(tmp_path.glob("toolkit-images-*/*.sif*"))
    if says:
        assert says in said
        assert "reads the shared image" in said
        assert not copies
    else:
        assert said == ""
        assert [copy.read_text() for copy in copies] == ["abc" * 1000]


def test_a_later_job_uses_the_copy_and_what_no_job_used_for_a_week_goes(tmp_path):
    image = tmp_path / "image.sif"
    image.write_text("abc")
    stage(tmp_path)
    (copy,) = tmp_path.glob("toolkit-images-*/*.sif")
    old = copy.with_name("old.sif")
    old.write_text("x")
    for path, days in ((old, 8), (copy, 6)):
        os.utime(path, (time.time() - days * 86400,) * 2)
    image.unlink()
    assert stage(tmp_path, job=8) == ""
    assert not old.exists()
    assert time.time() - copy.stat().st_mtime < 3600


def test_two_jobs_at_once_make_one_copy(tmp_path):
    (tmp_path / "image.sif").write_text("abc")
    slow = 'cp() { echo copied >>"${2%/*}/../copies"; sleep 0.5; command cp "$@"; }'
    script = f"set -eu\nimage={tmp_path}/image.sif\n{staging(tmp_path)[0]}\n{DISK}\n{slow}\n"
    started = [
        subprocess.Popen(["bash", "-c", f"SLURM_JOB_ID={job}\n{script}stage"]) for job in (7, 8)
    ]
    assert [process.wait(timeout=60) for process in started] == [0, 0]
    assert (tmp_path / "copies").read_text() == "copied\n"


@pytest.mark.parametrize("state", ["free", "taken", "silent"])
def test_the_search_for_ports_of_tensorflow_ends(state):
    """Of two ports none is taken, both are, or both drop packets, as a firewall does."""
    with ExitStack() as stack:
        one, two = neighbours(stack)
        for port in (one, two):
            if state == "taken":
                port.listen()
            elif state == "silent":
                fill(stack, port)
        ports = (one.getsockname()[1], two.getsockname()[1])
        decided = replace(decide(make_case({"launcher": "tensorflow"}, manifest=None)), ports=ports)
        text = scripts.script(decided)
        search = text[text.index("# Where the workers are") : text.index("# What each task does")]
        before = "set -euo pipefail; scontrol() { echo 127.0.0.1; }; SLURM_JOB_ID=7 SLURM_JOB_NODELIST=x\n"
        done = subprocess.run(
            ["bash", "-c", f"{before}{search}\necho $WORKERS"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,  # one silent port alone takes 130 s by itself
        )
    if state != "taken":
        assert done.stdout.count("127.0.0.1:") == 2, done.stderr
    else:
        assert done.returncode == 1
        assert f"of the ports {ports[0]}-{ports[1]}, no" in done.stderr


def neighbours(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Bind two ports of this host that follow each other."""
    while True:
        one, two = (stack.enter_context(socket.socket()) for _ in range(2))
        one.bind(("127.0.0.1", 0))
        with suppress(OSError, OverflowError):
            two.bind(("127.0.0.1", one.getsockname()[1] + 1))
            return one, two


def fill(stack: ExitStack, server: socket.socket) -> None:
    """Have a port that answers no more: Linux drops what comes to a full queue."""
    server.listen(0)
    for _ in range(4):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(server.getsockname())
