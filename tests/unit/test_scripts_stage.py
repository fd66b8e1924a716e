"""A node's own copy of the image: made once, used again, and given up where it would do harm."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.samples import LOCAL, make_case
from toolkit import scripts
from toolkit.planning.plan import decide

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


def staging(place: Path) -> str:
    """Return the part of a script that copies the image to a node's disk at ``place``."""
    site = replace(LOCAL, stage_directory=str(place))
    text = scripts.script(decide(make_case({"stage_image": True}, site=site, version="id-1")))
    return text[text.index("export staged=") : text.index("export -f stage")]


def test_a_copy_in_a_directory_of_another_user_is_not_run(tmp_path):
    site = replace(LOCAL, stage_directory=str(tmp_path))
    text = scripts.script(decide(make_case({"stage_image": True}, site=site, version="id-1")))
    (choice,) = (line for line in text.splitlines() if "image=$staged" in line)
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    (own / "x.sif").touch()
    other.symlink_to(own)
    for directory, image in (
        (own, f"{own}/x.sif"),
        (other, "shared"),
        (Path("/proc/self/cwd"), "shared"),
    ):
        script = f"image=shared staged={directory}/x.sif\n{choice}\necho $image"
        assert subprocess.check_output(["bash", "-c", script], text=True, cwd=own).strip() == image


def run(place: Path, functions: str = "", job: int = 7) -> str:
    setting = f"image={place}/image.sif SLURM_JOB_ID={job}"
    script = f"set -euo pipefail\n{setting}\n{staging(place)}\n{DISK}\n{functions}\nstage"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("functions", "says"), NODES.values(), ids=NODES)
def test_a_node_has_a_whole_copy_or_says_why_it_has_none(functions, says, tmp_path):
    (tmp_path / "image.sif").write_text("abc" * 1000)
    said = run(tmp_path, functions)
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
    run(tmp_path)
    (copy,) = tmp_path.glob("toolkit-images-*/*.sif")
    old = copy.with_name("old.sif")
    old.write_text("x")
    for path, days in ((old, 8), (copy, 6)):
        os.utime(path, (time.time() - days * 86400,) * 2)
    image.unlink()
    assert run(tmp_path, job=8) == ""
    assert not old.exists()
    assert time.time() - copy.stat().st_mtime < 3600


def test_two_jobs_at_once_make_one_copy(tmp_path):
    (tmp_path / "image.sif").write_text("abc")
    slow = 'cp() { echo copied >>"${2%/*}/../copies"; sleep 0.5; command cp "$@"; }'
    script = f"set -eu\nimage={tmp_path}/image.sif\n{staging(tmp_path)}\n{DISK}\n{slow}\n"
    started = [
        subprocess.Popen(["bash", "-c", f"SLURM_JOB_ID={job}\n{script}stage"]) for job in (7, 8)
    ]
    assert [process.wait(timeout=60) for process in started] == [0, 0]
    assert (tmp_path / "copies").read_text() == "copied\n"
