"""An image on top of another keeps what that was verified for: real builds by pip, on the real image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.image_fixtures import copy_cache, manifest_in


class Store(NamedTuple):
    """A directory of images with the caches of another."""

    directory: Path

    def build(self, *lines: str) -> subprocess.CompletedProcess[str]:
        """Build an image that has one step of pip more than pytorch_cpu."""
        recipe = self.directory / "extended.toml"
        head = 'summary = "a test"\nextends = "pytorch_cpu"\n\n[[steps]]\nblock = "pip"\nname = "extra"\n'
        recipe.write_text(head + "\n".join(lines) + "\n")
        argv = (sys.executable, "-m", "toolkit", "image", "build", str(recipe))
        env = {**os.environ, "TOOLKIT_IMAGES": str(self.directory)}
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, timeout=550, stdin=subprocess.DEVNULL
        )


@pytest.fixture(scope="module")
def store(pytorch_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of its own, in which what pytorch_cpu is made of need not be made again."""
    directory = tmp_path_factory.mktemp("images")
    copy_cache(pytorch_image.parent, directory)
    yield Store(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.long  # beside it: the manifest and the extension of test_image_locked.py
def test_what_is_added_is_listed_and_checked_and_torch_is_kept(store):
    done = store.build('packages = ["einops"]')
    assert done.returncode == 0, done.stderr
    manifest = manifest_in(store.directory / "extended.sif")
    assert manifest["frameworks"]["torch"] == "2.13.0+cpu"
    assert manifest["frameworks"]["einops"]
    assert any(
        one["name"] == "imports" and "einops" in one["detail"] for one in manifest["verified"]
    )
    assert "einops" in manifest["pythons"][0]["modules"]


def test_what_would_replace_torch_ends_with_what_fits(store):
    """The review's case: torchvision for another torch; pip alone would have replaced torch under Horovod."""
    done = store.build('packages = ["torchvision==0.29.2"]')
    assert done.returncode == 74, done.stderr
    for words in (
        "torchvision==0.29.2 would replace what extended is verified for",
        "torch==2.13.0+cpu",
        "toolkit-fits: ",
        "torchvision-0.28.0",
        "into [overrides] of the recipe",
    ):
        assert words in done.stderr, done.stderr
