"""Measure builds of a changed image: `make bench-build`.

- install, line: the last step of an image is changed, on a base of 2 GB: it installs pandas by pip,
  from wheels that lie in the base, or is one line of shell. Ours, ``apptainer build`` and BuildKit
  build it in turns. Each has the base in its own store before anything is timed.
- package: one more package of pip on pytorch_cpu, beyond pip's own time.

The base is the contents of pytorch_cpu, with copies of its large libraries until there are 2 GB. A
copy has each byte replaced by another, so that it packs as well as the original and is equal to
nothing that is there already. Needs 12 GB of disk, and an engine of Docker, also by DOCKER_HOST.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks import runner
from toolkit import shell
from toolkit.errors import NeedsInstallError
from toolkit.images.builder.apptainer.compose import open_squashfs
from toolkit.images.builder.apptainer.programs import COMPRESSION
from toolkit.images.host.privilege import build_options
from toolkit.images.recipe import library
from toolkit.images.store import store

BASE, SIZE = "pytorch_cpu", 2_100_000_000
FLAT_BAR, BUILDKIT_BAR, LINE_BAR = 0.2, 1.2, 4.0
PACKAGE_BAR = 15.0  # seconds beyond the step of pip
_WHEELS = "/opt/bench-wheels"
_PYTHON = "/opt/venv/bin"
_LAST = {
    "install": f"PATH={_PYTHON}:$PATH pip install --quiet --no-compile --no-index "
    f"--find-links {_WHEELS} pandas",
    "line": "true",
}
_PIP = '\n[[steps]]\nblock = "pip"\nname = "{name}"\npackages = ["{package}"]\n'
_PACKAGES = {"first": "tabulate==0.9.0", "added": "wcwidth==0.2.13"}


def unpack(place: Path) -> Path:
    """Unpack the image into a directory of at least ``SIZE`` bytes, and return it."""
    image = store.find(BASE)
    offset, _ = open_squashfs(image.path)
    root = place / "base"
    words = ("unsquashfs", "-quiet", "-no-progress", "-dest", str(root), "-offset", str(offset))
    shell.run([*words, image.path])
    minor = next((root / "opt/venv/lib").glob("python3.*")).name.removeprefix("python")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--dest", f"{root}{_WHEELS}")
    shell.run([*pip, "--python-version", minor, "--only-binary", ":all:", "pandas==2.2.3"])
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    missing = SIZE - sum(path.stat().st_size for path in files)
    libraries = sorted(
        (path for path in files if ".so" in path.name), key=lambda path: -path.stat().st_size
    )
    copies = root / "opt/bench-copies"
    copies.mkdir()
    shift = 0
    while missing > 0:
        shift += 1
        table = bytes((byte + shift) % 256 for byte in range(256))
        for path in libraries[:20]:
            (copies / f"{shift}-{path.name}").write_bytes(path.read_bytes().translate(table))
            missing -= path.stat().st_size
    return root


def engine() -> tuple[str, dict[str, str]]:
    """Return Docker's client and its environment.

    Raises:
        NeedsInstallError: no engine answers it.
    """
    # The distribution's client has BuildKit's plugin; one that was put in /usr/local need not.
    client = shutil.which("docker", path="/usr/bin:/bin") or "docker"
    if not shell.run([client, "version"], check=False).ok:
        step = "apt-get install docker.io; start dockerd, or name an engine by DOCKER_HOST"
        raise NeedsInstallError("no Docker engine answers here", next_step=step)
    return client, {**os.environ, "DOCKER_BUILDKIT": "1"}


class Changes:
    """The three ways to build an image whose last step was never built before."""

    def __init__(self, place: Path, base: Path, client: str, docker: dict[str, str]) -> None:
        self.place, self.base, self.client, self.docker = place, base, client, docker
        self.env = runner.environment(TOOLKIT_IMAGES=str(place / "images"))
        self.count = 0

    def steps(self, last: str) -> list[str]:
        """Return the steps with a new last one."""
        self.count += 1
        return ["mkdir /opt/first", "mkdir /opt/second", f"{last} && echo {self.count} > /opt/last"]

    def _recipe(self, last: str) -> str:
        steps = "".join(
            f'[[steps]]\nblock = "run"\nname = "s{number}"\ncommands = [{json.dumps(step)}]\n'
            for number, step in enumerate(self.steps(last))
        )
        path = self.place / "bench.toml"
        path.write_text(
            f'summary = "benchmark"\n[base]\nkind = "localimage"\npath = "{self.base}"\n'
            f"[space]\nimage = 2000\nbuild = 4000\n{steps}"
        )
        return str(path)

    def ours(self, last: str) -> float:
        """Return the seconds of ``toolkit image build``."""
        argv = (*runner.TOOLKIT, "image", "build", self._recipe(last))
        return runner.seconds(argv, self.place, self.env, 1800)

    def flat(self, last: str) -> float:
        """Return the seconds of Apptainer with our definition, packed as we pack."""
        (self.place / "flat.def").write_text(library.render(library.load(self._recipe(last))))
        scratch = self.place / "scratch"
        scratch.mkdir(exist_ok=True)
        env = {**self.env, "APPTAINER_TMPDIR": str(scratch), "APPTAINER_CACHEDIR": str(scratch)}
        packing = ("--mksquashfs-args", " ".join(COMPRESSION))
        argv = (shell.require_apptainer(), "build", "--force", *build_options(), *packing)
        return runner.seconds((*argv, "flat.sif", "flat.def"), self.place, env, 1800)

    def buildkit(self, last: str) -> float:
        """Return the seconds of BuildKit."""
        context = self.place / "context"
        context.mkdir(exist_ok=True)
        steps = "".join(f"RUN export PATH={_PYTHON}:$PATH && {step}\n" for step in self.steps(last))
        (context / "Dockerfile").write_text(f"FROM bench:base\n{steps}")
        words = ("build", "--quiet", "--network=host", "--tag", "bench:built", str(context))
        return runner.seconds((self.client, *words), self.place, self.docker, 1800)


def of_last_steps(runs: int, parts: tuple[str, ...]) -> list[runner.Row]:
    """Build a changed last step in turns with BuildKit and Apptainer."""
    with tempfile.TemporaryDirectory(prefix="tk-bench-", dir="/var/tmp") as directory:
        place = Path(directory)
        base = unpack(place)
        client, docker = engine()
        load = 'tar --create --directory "$1" . | "$2" import - bench:base'
        shell.run(["bash", "-c", load, "bash", base, client], env=docker, timeout=1800)
        build = Changes(place, base, client, docker)
        build.buildkit("true")
        build.ours("true")
        compared = (
            ("line", "BuildKit", build.buildkit, LINE_BAR),
            ("install", "BuildKit", build.buildkit, BUILDKIT_BAR),
            ("install", "apptainer build", build.flat, FLAT_BAR),
        )
        return [
            runner.compare(
                f"last step: {part}",
                partial(build.ours, _LAST[part]),
                (name, partial(peer, _LAST[part])),
                bar=bar,
                runs=runs,
                warm_ups=0 if name == "apptainer build" else 1,  # it has nothing to warm up
            )
            for part, name, peer, bar in compared
            if part in parts
        ]


def of_package() -> runner.Row:
    """Add a package of pip to pytorch_cpu, whose layers come from the cache of the user's images.

    The cache is linked, not changed.
    """
    text = library.recipe_path(BASE).read_text(encoding="utf-8")
    steps, _, rest = text.partition("\n[space]")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=store.images_directory()) as directory:
        images = Path(directory) / "images"
        locks = shutil.ignore_patterns("*.lock")  # a lock's file has one name
        cache = store.images_directory() / ".cache"
        shutil.copytree(cache, images / ".cache", ignore=locks, copy_function=os.link)
        recipe = Path(directory) / "bench.toml"
        env = {**os.environ, "TOOLKIT_IMAGES": str(images)}
        for name, package in _PACKAGES.items():
            steps += _PIP.format(name=name, package=package)
            recipe.write_text(f"{steps}\n[space]{rest}", encoding="utf-8")
            began = time.monotonic()
            subprocess.run((*runner.TOOLKIT, "image", "build", str(recipe)), env=env, check=True)
            seconds = time.monotonic() - began
        manifest = store.find(str(images / "bench.sif")).manifest
    assert manifest is not None
    beyond = seconds - manifest.seconds["added"]
    parts = ", ".join(f"{name} {manifest.seconds[name]:.1f} s" for name in ("pack", "checks"))
    what = "one more package of pip, beyond pip's time"
    return runner.Row(what, f"{beyond:.1f} s", parts, f"{PACKAGE_BAR:g} s", beyond <= PACKAGE_BAR)


def main() -> int:
    """Measure and print; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each side (default: 3)")
    names = (*_LAST, "package")
    parser.add_argument("--only", action="append", choices=names, help="this part only")
    given = parser.parse_args()
    parts = tuple(given.only or names)
    rows = of_last_steps(given.runs, parts) if {*parts} - {"package"} else []
    return runner.report([*rows, of_package()] if "package" in parts else rows)


if __name__ == "__main__":
    sys.exit(main())
