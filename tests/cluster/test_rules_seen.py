"""What a site is known to have or to do, through `toolkit run` itself: each rule that Slurm does not know, broken, and nearly broken.

Files, directories, a full file system and an unreadable script are real. An image for GPUs, and a
program that tells of a quota, are stand-ins: there is no CUDA here, and this kernel keeps no
quotas.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.image_fixtures import Tiny
from tests.cluster.ordinary_user import User

pytestmark = pytest.mark.usefixtures("cluster")

DAY = 86400
# As `quota --no-wrap --raw-grace` prints it: blocks of 1 KiB, of which the user has some, may have
# so many, and so many at the most.
QUOTA = """\
#!/bin/sh
echo 'Disk quotas for user me (uid 0): '
echo '     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace'
echo '      /dev/sda1 {used}  0 10000000       0       5       0       0       0'
"""


class Place(NamedTuple):
    """A site whose rules are known, and how the tool is called by who has it in their configuration."""

    directory: Path
    env: dict[str, str]
    image: Path

    def said(
        self,
        toolkit: Any,
        *options: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        """The exit code and the messages of a dry run."""
        words = ("run", "--dry-run", "--image", str(self.image), "--launcher", "none", *options)
        done = toolkit(*words, cwd=cwd or self.directory, env=env or self.env)
        return done.returncode, done.stderr


@pytest.fixture
def place(toolkit_env: dict[str, str], shared_dir: Path, pytorch_image: Path) -> Place:
    """The local cluster with more to it, where a directory holds one image and one script."""
    (shared_dir / "config/toolkit/sites").mkdir(parents=True)
    work = shared_dir / "scratch"
    work.mkdir()
    (shared_dir / "config/toolkit/sites/careful.toml").write_text(
        f'name = "careful"\nextends = "local"\ndate = "2026-11"\npurge_days = 15\nscratch = "{work}"\ndriver = "470.57.02"\n'
        f'available_modules = ["cuda/11.8", "gcc/12"]\nports = [20000, 20099]\n[datasets]\ndigits = "{work}/data"\n'
    )
    (work / "train.py").write_text('import os\nprint("port", os.environ["MASTER_PORT"])\n')
    image = work / "image.sif"
    image.symlink_to(pytorch_image)
    shutil.copy(pytorch_image.with_suffix(".json"), work / "image.json")
    env = {**toolkit_env, "XDG_CONFIG_HOME": str(shared_dir / "config"), "TOOLKIT_SITE": "careful"}
    return Place(work, env, image)


@pytest.fixture
def small(place: Place) -> Iterator[Path]:
    """A file system of 150 MB that does not note when files are read."""
    directory = place.directory / "small"
    directory.mkdir()
    subprocess.run(
        ("mount", "-t", "tmpfs", "-o", "size=150m,noatime", "tmpfs", directory), check=True
    )
    try:
        yield directory
    finally:
        subprocess.run(("umount", "--lazy", directory), check=True)


def test_files_that_the_site_is_about_to_delete(toolkit: Any, place: Place, small: Path) -> None:
    """On a file system that does not note when a file is read: elsewhere a file that we have looked at is safe."""
    script = small / "train.py"
    shutil.copy(place.directory / "train.py", script)
    for days, warned in ((13, False), (14.5, True)):
        then = time.time() - days * DAY
        os.utime(script, (then, then))
        code, said = place.said(toolkit, "--time", "60", str(script))
        assert (code, f"{script} was not read for" in said) == (0, warned), said
    condemned = script.rename(small / "ToBeDelete_train.py")
    code, said = place.said(toolkit, str(condemned))
    assert (code, f"{condemned} is about to be deleted" in said) == (82, True), said


def test_data_sets_that_the_site_should_have(toolkit: Any, place: Place) -> None:
    (place.directory / "job.toml").write_text('script = "train.py"\ndatasets = ["digits"]\n')
    code, said = place.said(toolkit, str(place.directory))
    assert (code, f"digits should be in {place.directory}/data, and is not there" in said) == (
        82,
        True,
    ), said
    (place.directory / "data").mkdir()
    code, said = place.said(toolkit, str(place.directory))
    assert code == 0, said


def test_modules_that_the_site_has(toolkit: Any, place: Place) -> None:
    code, said = place.said(toolkit, "--module", "cuda/11.9", "train.py")
    assert (code, "is not known to have the module cuda/11.9" in said, "cuda/11.8" in said) == (
        64,
        True,
        True,
    ), said
    code, said = place.said(toolkit, "--module", "cuda/11.8", "train.py")
    assert code == 0, said


def test_the_driver_runs_the_images_cuda(toolkit: Any, place: Place) -> None:
    """The manifest beside the image says that it holds CUDA, which it does not: a stand-in."""
    known = json.loads((place.directory / "image.json").read_text())
    for version, code in (("2.1.0+cu118", 0), ("2.6.0+cu126", 81)):
        manifest = {**known, "frameworks": {**known["frameworks"], "torch": version}}
        (place.directory / "image.json").write_text(json.dumps(manifest))
        done, said = place.said(toolkit, "--gpus", "1", "train.py")
        assert (done, "needs NVIDIA's driver" in said) == (code, code != 0), said


def test_an_image_that_was_changed(toolkit: Any, place: Place, tiny: Tiny) -> None:
    assert tiny.run("build", tiny.recipe("true")).returncode == 0
    built = shutil.copytree(
        tiny.images, place.directory / "images", ignore=shutil.ignore_patterns(".*")
    )
    here = place._replace(image=built / "tiny.sif")
    code, said = here.said(toolkit, "sh")
    assert code == 0, said
    assert tiny.run("build", tiny.recipe("echo other > /other")).returncode == 0
    shutil.copy(tiny.images / "tiny.sif", here.image)
    code, said = here.said(toolkit, "sh")
    assert (code, "tiny.sif was changed: the manifest beside it is of another file" in said) == (
        68,
        True,
    ), said


def test_ranks_meet_where_the_site_lets_them(toolkit: Any, place: Place) -> None:
    options = (
        "--image",
        str(place.image),
        *"--launcher srun --nodes 2 --ntasks-per-node 1".split(),
    )
    done = toolkit("run", *options, "train.py", cwd=place.directory, env=place.env)
    assert done.returncode == 0, done.stdout + done.stderr
    ports = {
        int(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if " port " in f" {line}"
    }
    assert len(ports) == 1
    assert 20000 <= ports.pop() <= 20099
    code, said = place.said(toolkit, "--env", "MASTER_PORT=20100", "train.py")
    assert (
        code,
        "MASTER_PORT=20100 is not among the ports at which ranks may meet: 20000 to 20099" in said,
    ) == (64, True), said
    code, said = place.said(toolkit, "--env", "MASTER_PORT=20099", "train.py")
    assert (code, "MASTER_PORT=20099 is the same for every job" in said) == (0, True), said


def test_caches_in_a_small_home(toolkit: Any, place: Place) -> None:
    home = place.directory.parent / "home"
    env = {**place.env, "HOME": str(home)}
    code, said = place.said(toolkit, "--env", f"HF_HOME={home}/models", "train.py", env=env)
    assert (code, f"HF_HOME is in your home ({home}/models)" in said) == (0, True), said
    code, said = place.said(
        toolkit, "--env", f"HF_HOME={place.directory}/models", "train.py", env=env
    )
    assert (code, "HF_HOME" in said) == (0, False), said


@pytest.mark.parametrize(("used", "code"), [(9_950_000, 73), (9_500_000, 0), (1_000_000, 0)])
def test_a_quota_that_is_used_up(used: int, code: int, toolkit: Any, place: Place) -> None:
    programs = place.directory / "bin"
    programs.mkdir()
    (programs / "quota").write_text(QUOTA.format(used=used))
    (programs / "quota").chmod(0o755)
    env = {**place.env, "PATH": f"{programs}:{place.env['PATH']}"}
    done, said = place.said(toolkit, "train.py", env=env)
    assert (done, "your quota leaves" in said) == (code, used > 9_000_000), said


def test_a_file_system_that_is_full(toolkit: Any, place: Place, small: Path) -> None:
    shutil.copy(place.directory / "train.py", small)
    code, said = place.said(toolkit, "train.py", cwd=small)
    assert (code, f"in {small} the file system has 15" in said) == (0, True), said
    (small / "filler").write_bytes(bytes(80 << 20))
    code, said = place.said(toolkit, "train.py", cwd=small)
    assert (code, f"in {small} the file system has 7" in said) == (73, True), said


def test_a_script_that_its_owner_keeps(user: User, users_cluster: None) -> None:
    """Only an ordinary user can be kept from reading."""
    del users_cluster
    script, image = user.home / "kept.py", user.home / "none.sif"
    script.write_text("print()\n")
    image.touch()
    shutil.chown(script, user.name)
    for mode, refused in ((0o600, False), (0o000, True)):
        script.chmod(mode)
        done = user.toolkit(
            "run", "--dry-run", "--image", str(image), "--launcher", "none", str(script)
        )
        assert (f"you may not read {script}, and the ranks are you" in done.stderr) == refused, (
            done.stderr
        )


@pytest.fixture
def users_cluster(user: User) -> Iterator[None]:
    up = user.toolkit("cluster", "up", "--nodes", "1")
    assert up.returncode == 0, up.stderr
    yield
    assert user.toolkit("cluster", "down").returncode == 0
