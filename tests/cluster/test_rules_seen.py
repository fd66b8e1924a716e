"""What a site is known to have or to do, through `toolkit run` itself: each rule that Slurm does not know, broken, and nearly broken.

Files, directories, a full file system and an unreadable script are real. An image for GPUs, and a
program that tells of a quota, are stand-ins: there is no CUDA here, and this kernel keeps no
quotas.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from tests.cluster.ordinary_user import User
from tests.unit.test_images_store import fake_sif
from toolkit.images.store import store

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

    toolkit: Any
    directory: Path
    env: dict[str, str]
    image: Path

    def expect(
        self, code: int, text: str, *options: str, cwd: Path | None = None, **variables: str
    ) -> None:
        """Hold that a dry run ends with a code and says a text; a text after "-" is not said."""
        words = ("run", "--dry-run", "--image", str(self.image), "--launcher", "none", *options)
        done = self.toolkit(*words, cwd=cwd or self.directory, env={**self.env, **variables})
        is_said = text.removeprefix("-") in done.stderr
        assert (done.returncode, is_said) == (code, not text.startswith("-")), done.stderr


@pytest.fixture
def place(
    toolkit: Any, toolkit_env: dict[str, str], shared_dir: Path, pytorch_image: Path
) -> Place:
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
    env = {**toolkit_env, "XDG_CONFIG_HOME": str(shared_dir / "config"), "TOOLKIT_SITE": "careful"}
    return Place(toolkit, work, env, image)


@pytest.fixture
def small(place: Place) -> Iterator[Path]:
    """A file system of 150 MB that does not note when files are read."""
    directory = place.directory / "small"
    directory.mkdir()
    options = ("-t", "tmpfs", "-o", "size=150m,noatime", "tmpfs", directory)
    subprocess.run(("mount", *options), check=True)
    try:
        yield directory
    finally:
        subprocess.run(("umount", "--lazy", directory), check=True)


def test_files_that_the_site_is_about_to_delete(place: Place, small: Path) -> None:
    """On a file system that does not note when a file is read: elsewhere a file that we have looked at is safe."""
    script = small / "train.py"
    shutil.copy(place.directory / "train.py", script)
    for days, mark in ((13, "-"), (14.5, "")):
        then = time.time() - days * DAY
        os.utime(script, (then, then))
        place.expect(0, f"{mark}{script} was not read for", "--time", "60", str(script))
    condemned = script.rename(small / "ToBeDelete_train.py")
    place.expect(82, f"{condemned} is about to be deleted", str(condemned))


def test_data_sets_and_modules_that_the_site_should_have(place: Place) -> None:
    (place.directory / "job.toml").write_text('script = "train.py"\ndatasets = ["digits"]\n')
    missing = f"digits should be in {place.directory}/data, and is not there"
    place.expect(82, missing, str(place.directory))
    (place.directory / "data").mkdir()
    place.expect(0, f"-{missing}", str(place.directory))
    unknown = "is not known to have the module"
    for text in (f"{unknown} cuda/11.9", "cuda/11.8"):
        place.expect(64, text, "--module", "cuda/11.9", "train.py")
    place.expect(0, f"-{unknown}", "--module", "cuda/11.8", "train.py")


def test_the_driver_runs_the_images_cuda(place: Place, pytorch_image: Path) -> None:
    """The manifest in the image says that it holds CUDA, which it does not: a stand-in."""
    known = store.manifest_of(pytorch_image)
    assert known
    place.image.unlink()
    for version, code, mark in (("2.1.0+cu118", 0, "-"), ("2.6.0+cu126", 81, "")):
        frameworks = {**known.frameworks, "torch": version}
        fake_sif(place.image, size=1 << 20, inside=replace(known, frameworks=frameworks))
        place.expect(code, f"{mark}needs NVIDIA's driver", "--gpus", "1", "train.py")


def test_ranks_meet_where_the_site_lets_them(place: Place) -> None:
    words = "--launcher srun --nodes 2 --ntasks-per-node 1 train.py".split()
    done = place.toolkit(
        "run", "--image", str(place.image), *words, cwd=place.directory, env=place.env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if " port " in f" {line}"]
    (port,) = {int(line.rpartition(" ")[2]) for line in lines}
    assert 20000 <= port <= 20099
    outside = "MASTER_PORT=20100 is not among the ports at which ranks may meet: 20000 to 20099"
    place.expect(64, outside, "--env", "MASTER_PORT=20100", "train.py")
    fixed = "MASTER_PORT=20099 is the same for every job"
    place.expect(0, fixed, "--env", "MASTER_PORT=20099", "train.py")


def test_caches_in_a_small_home(place: Place) -> None:
    home = place.directory.parent / "home"
    inside, beside = f"HF_HOME={home}/models", f"HF_HOME={place.directory}/models"
    place.expect(
        0, f"HF_HOME is in your home ({home}/models)", "--env", inside, "train.py", HOME=str(home)
    )
    place.expect(0, "-HF_HOME", "--env", beside, "train.py", HOME=str(home))


@pytest.mark.parametrize(
    ("used", "code", "mark"), [(9_950_000, 73, ""), (9_500_000, 0, ""), (1_000_000, 0, "-")]
)
def test_a_quota_that_is_used_up(used: int, code: int, mark: str, place: Place) -> None:
    programs = place.directory / "bin"
    programs.mkdir()
    (programs / "quota").write_text(QUOTA.format(used=used))
    (programs / "quota").chmod(0o755)
    path = f"{programs}:{place.env['PATH']}"
    place.expect(code, f"{mark}your quota leaves", "train.py", PATH=path)


def test_a_file_system_that_is_full(place: Place, small: Path) -> None:
    shutil.copy(place.directory / "train.py", small)
    place.expect(0, f"in {small} the file system has 15", "train.py", cwd=small)
    (small / "filler").write_bytes(bytes(80 << 20))
    place.expect(73, f"in {small} the file system has 7", "train.py", cwd=small)


def test_a_script_that_its_owner_keeps(user: User) -> None:
    """Only an ordinary user can be kept from reading."""
    script, image = user.home / "kept.py", user.home / "none.sif"
    script.write_text("print()\n")
    image.touch()
    shutil.chown(script, user.name)
    for mode, refused in ((0o600, False), (0o000, True)):
        script.chmod(mode)
        words = ("--image", str(image), "--launcher", "none", str(script))
        done = user.toolkit("run", "--dry-run", "--site", "neuron", *words)
        text = f"you may not read {script}, and the ranks are you"
        assert (text in done.stderr) == refused, done.stderr
