"""Convert an engine's image to a SIF with the same labels and start, which passes its checks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from toolkit.errors import BuildError, MalformedInputError, NoSpaceError
from toolkit.images.builder.apptainer import apptainer
from toolkit.images.builder.docker.archives import write_layout
from toolkit.images.builder.follow import Follower
from toolkit.images.host.workspace import Workspace
from toolkit.images.recipe.bases import Base, BaseOutput
from toolkit.images.recipe.block import CHECKS
from toolkit.images.recipe.library import build_stages
from toolkit.images.recipe.quoting import format_exports
from toolkit.images.recipe.resolve import Resolved
from toolkit.runtimes.docker import Engine

_LAYOUT = "image"  # the SIF names it, so it is no path of this machine


class Layout(Base, frozen=True, kw_only=True):
    """The base of a conversion: the engine's image in OCI's layout. No recipe can name it."""

    def output(self) -> BaseOutput:
        """Return what the definition of the conversion gets from this base."""
        return BaseOutput(
            detail="the image that the engine built",
            header=("Bootstrap: oci", f"From: {_LAYOUT}"),
        )


def convert(
    engine: Engine, image: str, resolved: Resolved, place: Workspace, follower: Follower
) -> str:
    """Make ``place.sif`` of an engine's image and run its checks; return the program that did it.

    Args:
        engine: The engine.
        image: The engine's id of the image.
        resolved: The recipe of the image.
        place: The directories of this build.
        follower: Follows the programs that run.

    Raises:
        BuildError, NoSpaceError: It could not be written or packed, or did not pass a check.
        NeedsInstallError, ForbiddenError: Apptainer is missing, or this user cannot build by it.
    """
    layout = place.scratch / _LAYOUT
    _save(engine, image, layout)
    text = definition(resolved.name, engine.name, build_stages(resolved).environment)
    try:
        return apptainer.pack_archive(Layout(), text, place, follower, place.scratch)
    finally:
        shutil.rmtree(layout, ignore_errors=True)


def definition(name: str, engine: str, environment: Mapping[str, str]) -> str:
    r"""Return the definition for what an image of Docker's has no place for.

    Environment and labels are copied by Apptainer, except for values with a dollar sign: Apptainer
    1.4 writes them as ``"${A:-"\$X"}"``, which its shell reads as a backslash and the value of X.
    """
    dollars = {variable: value for variable, value in environment.items() if "$" in value}
    exported = "\n".join(f"    export {setting}" for setting in format_exports(dollars, {}))
    return (
        f"# {name}: built by {engine}, and put into a SIF by toolkit.\n"
        + "\n".join(Layout().output().header)
        + (f"\n\n%environment\n{exported}\n" if dollars else "")
        + f'\n\n%runscript\n    exec "$@"\n\n%test\n    exec sh {CHECKS}/run\n'
    )


def _save(engine: Engine, image: str, directory: Path) -> None:
    """Write an engine's image into a new directory, in OCI's layout.

    Raises:
        BuildError: The engine ended, or does not have the image.
        NoSpaceError: The disk was full.
    """
    import requests
    from docker.errors import DockerException

    try:
        write_layout(engine.client.images.get(image).save(), directory)
    # RequestException is an OSError.
    except (DockerException, requests.RequestException, MalformedInputError) as error:
        raise BuildError(
            f"{engine} could not save the image",
            place=engine.address,
            details=(str(error)[:300],),
            next_step="check the engine's own log",
        ) from None
    except OSError as error:
        raise NoSpaceError(
            f"the image could not be written to {directory.parent}: {error.strerror}",
            place=str(directory.parent),
        ) from None
