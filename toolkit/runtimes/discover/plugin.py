"""Whether Slurm here has the plugin Pyxis: its options are in `srun --help`, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import ImageMissingError, LauncherMismatchError
from toolkit.images.recipe.names import recipe_names
from toolkit.slurm.client import Client


def check(client: Client, image: str) -> str:
    """The image as the nodes find it: its reference, or the absolute path of its file.

    Raises:
        LauncherMismatchError: srun has no ``--container-image``.
        ImageMissingError: the image is a file that is not there, or one of ours, which enroot does not read.
    """
    if "--container-image" not in client.srun_help():
        raise LauncherMismatchError(
            "srun here knows no --container-image: Slurm has no plugin Pyxis",
            place="--runtime pyxis",
            next_step="--runtime apptainer; or ask the administrator for Pyxis (https://github.com/NVIDIA/pyxis)",
        )
    if image in recipe_names() or image.endswith(".sif"):
        raise ImageMissingError(
            f"{image} is a SIF, and Pyxis starts images of registries and squashfs files of enroot",
            place="--image",
            next_step="--runtime apptainer, or --image REGISTRY/NAME:TAG",
        )
    if not image.startswith(("/", "./", "../", "~/")):
        return image
    path = Path(image).expanduser().absolute()
    if not path.is_file():
        raise ImageMissingError(
            f"there is no file {path}",
            place="--image",
            next_step="enroot import docker://REGISTRY#NAME:TAG makes one",
        )
    return str(path)
