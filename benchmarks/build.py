"""Measure builds of a changed image: `make bench-build`.

- install, line: the last step of an image is changed, on the contents of pytorch_cpu: it installs
  pandas by pip, from wheels that lie in the base, beside ``apptainer build``; or it is one line of
  shell, beside BuildKit. Each side has the base in its own store before anything is timed.
- package: one more package of pip on pytorch_cpu, beyond pip's own time.

Needs 12 GB of disk, and an engine of Docker, also by DOCKER_HOST.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import runner
from toolkit import shell
from toolkit.images.builder.apptainer.programs import COMPRESSION
from toolkit.images.host.privilege import build_options
from toolkit.images.recipe import library
from toolkit.images.store import store

BASE = "pytorch_cpu"
FLAT_BAR, LINE_BAR = 0.25, 4.0
PACKAGE_BAR = 15.0  # seconds beyond the step of pip
_WHEELS = "/opt/bench-wheels"
_PYTHON = "/opt/venv/bin"
_INSTALL = (
    f"PATH={_PYTHON}:$PATH pip install --quiet --no-compile --no-index "
    f"--find-links {_WHEELS} pandas"
)
_PIP = '\n[[steps]]\nblock = "pip"\nname = "{name}"\npackages = ["{package}"]\n'
_PACKAGES = {"first": "tabulate==0.9.0", "added": "wcwidth==0.2.13"}


class Changes:
    """The three ways to build an image whose last step was never built before."""

    def __init__(self, place: Path) -> None:
        self.place, self.base = place, place / "base"
        self.env = runner.environment(TOOLKIT_IMAGES=str(place / "images"))
        self.count = 0
        # The distribution's client has BuildKit's plugin; one in /usr/local need not.
        self.docker = shutil.which("docker", path="/usr/bin:/bin") or "docker"

    def unpack(self) -> None:
        """Unpack the base with wheels of pandas, and import it into Docker."""
        apptainer = (shell.require_apptainer(), "build", *build_options(), "--sandbox")
        shell.run([*apptainer, str(self.base), store.find(BASE).path], timeout=1800)
        (python,) = (self.base / "opt/venv/lib").glob("python3.*")
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:")
        version = ("--python-version", python.name.removeprefix("python"))
        shell.run([*pip, *version, "--dest", f"{self.base}{_WHEELS}", "pandas==2.2.3"])
        load = 'tar --create --directory "$1" . | "$2" import - bench:base'
        shell.run(["bash", "-c", load, "bash", str(self.base), self.docker], timeout=1800)

    def changed(self, step: str) -> str:
        """Return a step that was never built before."""
        self.count += 1
        return f"{step} && echo {self.count} > /opt/last"

    def _recipe(self, step: str) -> str:
        path = self.place / "bench.toml"
        path.write_text(
            f'summary = "benchmark"\n[base]\nkind = "localimage"\npath = "{self.base}"\n'
            f"[space]\nimage = 2000\nbuild = 4000\n"
            f'[[steps]]\nblock = "run"\nname = "last"\ncommands = ["{self.changed(step)}"]\n'
        )
        return str(path)

    def ours(self, step: str) -> float:
        """Return the seconds of ``toolkit image build``."""
        argv = (*runner.TOOLKIT, "image", "build", self._recipe(step))
        return runner.seconds(argv, self.place, self.env, 1800)

    def flat(self, step: str) -> float:
        """Return the seconds of Apptainer with our definition, packed as we pack."""
        (self.place / "flat.def").write_text(library.render(library.load(self._recipe(step))))
        scratch = self.place / "scratch"
        scratch.mkdir(exist_ok=True)
        env = {**self.env, "APPTAINER_TMPDIR": str(scratch), "APPTAINER_CACHEDIR": str(scratch)}
        packing = ("--mksquashfs-args", " ".join(COMPRESSION))
        argv = (shell.require_apptainer(), "build", "--force", *build_options(), *packing)
        return runner.seconds((*argv, "flat.sif", "flat.def"), self.place, env, 1800)

    def buildkit(self, step: str) -> float:
        """Return the seconds of BuildKit."""
        context = self.place / "context"
        context.mkdir(exist_ok=True)
        (context / "Dockerfile").write_text(f"FROM bench:base\nRUN {self.changed(step)}\n")
        words = ("build", "--quiet", "--network=host", "--tag", "bench:built", str(context))
        env = {**os.environ, "DOCKER_BUILDKIT": "1"}
        return runner.seconds((self.docker, *words), self.place, env, 1800)


def of_last_steps(runs: int) -> list[runner.Row]:
    """Build a changed last step in turns with BuildKit and Apptainer."""
    with tempfile.TemporaryDirectory(prefix="tk-bench-", dir="/var/tmp") as directory:
        build = Changes(Path(directory))
        build.unpack()
        line = ("BuildKit", partial(build.buildkit, "true"))
        flat = ("apptainer build", partial(build.flat, _INSTALL))
        ours, install = partial(build.ours, "true"), partial(build.ours, _INSTALL)
        return [
            runner.compare("last step: line", ours, line, bar=LINE_BAR, runs=runs),
            runner.compare("last step: install", install, flat, bar=FLAT_BAR, runs=runs),
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
            argv = (*runner.TOOLKIT, "image", "build", str(recipe))
            seconds = runner.seconds(argv, Path(directory), env, 1800)
        manifest = store.find(str(images / "bench.sif")).manifest
    assert manifest is not None
    beyond = seconds - manifest.seconds["added"]
    what = "one more package of pip, beyond pip's time"
    return runner.Row(what, f"{beyond:.1f} s", "", f"{PACKAGE_BAR:g} s", beyond <= PACKAGE_BAR)


def main() -> int:
    """Measure and print; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="of each side (default: 3)")
    given = parser.parse_args()
    return runner.report([*of_last_steps(given.runs), of_package()])


if __name__ == "__main__":
    sys.exit(main())
