"""pyxis: NVIDIA's plugin for Slurm.

Options that it adds to srun start tasks in containers of enroot.
"""

from __future__ import annotations

from toolkit.errors import ImageMissingError, LauncherMismatchError
from toolkit.model.case import Case, Image
from toolkit.model.plan import Container
from toolkit.runtimes.shared.base import (
    PREFIX,
    Runtime,
)
from toolkit.runtimes.shared.findings import home


class Pyxis(Runtime):
    """Containers of enroot that srun starts."""

    summary = "Slurm's own plugin Pyxis, with an image of a registry or a squashfs file of enroot"
    image = "enroot"
    offers = frozenset(("nodes", "pmi", "terminal"))

    def discover(self, case: Case) -> Case:
        """Require the plugin, which only `srun --help` shows, and the image.

        Returns:
            The case with the image as the nodes find it: its reference, or the absolute path of its
            file.
        """
        image = case.image.path
        if case.cluster is None:
            return case
        if "--container-image" not in case.cluster.srun_help():
            raise LauncherMismatchError(
                "srun here knows no --container-image: Slurm has no plugin Pyxis",
                place="--runtime pyxis",
                next_step="--runtime apptainer; or ask the administrator for Pyxis "
                "(https://github.com/NVIDIA/pyxis)",
            )
        if case.image.is_recipe or image.endswith(".sif"):
            raise ImageMissingError(
                f"{image} is a SIF, and Pyxis starts images of registries and squashfs files "
                "of enroot",
                place="--image",
                next_step="--runtime apptainer, or --image REGISTRY/NAME:TAG",
            )
        if not image.startswith(("/", "./", "../", "~/")):
            return case
        return case._replace(image=Image(_file(image), is_here=True))

    def container(self, case: Case) -> Container:
        """Return the image by its address, in the spelling of enroot."""
        return Container(
            runtime=self.name,
            image=enroot(case.image.path),
            name=case.image.path,
            where=f"in {case.image.path} by pyxis",
            prefix=PREFIX,
            inherits=True,
            gpus=bool(case.job.most_gpus),
            **home(case.image.path, case.site.scratch),
        )


def _file(image: str) -> str:
    from pathlib import Path

    path = Path(image).expanduser().absolute()
    if path.is_file():
        return str(path)
    raise ImageMissingError(
        f"there is no file {path}",
        place="--image",
        next_step="enroot import docker://REGISTRY#NAME:TAG makes one",
    )


def enroot(image: str) -> str:
    """Return ``nvcr.io/nvidia/pytorch:25.06-py3`` as ``nvcr.io#nvidia/pytorch:25.06-py3``.

    enroot looks for any other spelling on Docker Hub. Paths of files, and what is spelled so
    already, stay as they are.
    """
    image = image.removeprefix("docker://")
    first, slash, rest = image.partition("/")
    if image.startswith(("/", ".", "~")) or "#" in image or not slash:
        return image
    return f"{first}#{rest}" if "." in first or ":" in first or first == "localhost" else image


RUNTIME = Pyxis()
