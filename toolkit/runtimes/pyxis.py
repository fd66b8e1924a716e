"""pyxis: NVIDIA's plugin for Slurm, which starts tasks in containers of enroot by options of srun itself."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.errors import ToolkitError
from toolkit.model.plan import Container
from toolkit.runtimes import Asked, common


def check(asked: Asked) -> Sequence[ToolkitError]:
    """That srun has the plugin's options, and what the image is, was looked up."""
    return [*common.no_environment(asked, "pyxis"), *common.unsigned(asked, "pyxis")]


def container(asked: Asked) -> Container:
    """The image by its address, in the spelling of enroot."""
    image = enroot(asked.image)
    return Container(
        runtime="pyxis",
        image=image,
        name=asked.image,
        where=f"in {asked.image} by pyxis",
        prefix=common.PREFIX,
        inherits=True,
        binds=asked.binds,
        gpus=bool(asked.job.most_gpus),
        **common.home(asked.image, asked.site.scratch),
    )


def warnings(asked: Asked) -> tuple[str, ...]:
    """Of an image in a registry nothing is known."""
    del asked
    return ()


def enroot(image: str) -> str:
    """``nvcr.io/nvidia/pytorch:25.06-py3`` as ``nvcr.io#nvidia/pytorch:25.06-py3``: enroot takes everything for Docker Hub else.

    Paths of files, and what is written so already, stay as they are.
    """
    image = image.removeprefix("docker://")
    first, slash, rest = image.partition("/")
    if image.startswith(("/", ".", "~")) or "#" in image or not slash:
        return image
    return f"{first}#{rest}" if "." in first or ":" in first or first == "localhost" else image
