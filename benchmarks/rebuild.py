"""Measure what it costs to add a package of pip to a built image, beyond pip's own time.

Part of `make bench-build`. The image is pytorch_cpu with one more step of pip; its base and first
layers come from the cache of the user's images, and nothing of these is changed.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from toolkit.images.recipe import library
from toolkit.images.store import store
from toolkit.model.base import to_json

BAR = 15.0  # seconds beyond the step of pip
_STEP = '\n[[steps]]\nblock = "pip"\nname = "{name}"\npackages = ["{package}"]\n'
_PACKAGES = {"first": "tabulate==0.9.0", "added": "wcwidth==0.2.13"}


def recipe(names: tuple[str, ...]) -> str:
    """Return the recipe of pytorch_cpu with further steps, and without what comes after steps."""
    text = library.recipe_path("pytorch_cpu").read_text(encoding="utf-8")
    steps, _, rest = text.partition("\n[space]")
    more = "".join(_STEP.format(name=name, package=_PACKAGES[name]) for name in names)
    return f"{steps}{more}\n[space]{rest}"


def _processor_seconds() -> float:
    """Return what all ended processes below this one have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Build, add a package, build again, and print where the time went; 1 if the bar is missed."""
    directory = Path(tempfile.mkdtemp(prefix="bench-rebuild-", dir=store.images_directory()))
    try:
        images = directory / "images"
        shutil.copytree(
            store.images_directory() / ".cache",
            images / ".cache",
            ignore=shutil.ignore_patterns("*.lock"),  # a lock's file has one name
            copy_function=os.link,
        )
        environment = {**os.environ, "TOOLKIT_IMAGES": str(images)}
        command = (sys.executable, "-m", "toolkit", "image", "build", str(directory / "bench.toml"))
        seconds = processor = 0.0
        for names in (("first",), ("first", "added")):
            (directory / "bench.toml").write_text(recipe(names))
            began, used = time.monotonic(), _processor_seconds()
            subprocess.run(command, env=environment, check=True)
            seconds, processor = time.monotonic() - began, _processor_seconds() - used
        manifest = json.loads(to_json(store.find(str(images / "bench.sif")).manifest))
    finally:
        shutil.rmtree(directory)
    took = manifest["seconds"]
    rest = seconds - took["added"]
    parts = ", ".join(f"{name} {took[name]:.1f} s" for name in ("clean", "pack", "checks"))
    print(f"\nadding {_PACKAGES['added']} took {seconds:.1f} s, of which pip {took['added']:.1f} s")
    print(f"the rest: {rest:.1f} s ({parts})   bar {BAR:g} s {'held' if rest <= BAR else 'MISSED'}")
    print(f"processor time of the whole: {processor:.1f} s")
    return 0 if rest <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
