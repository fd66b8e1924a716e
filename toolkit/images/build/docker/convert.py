"""From an image of an engine to a SIF, which carries the same labels, starts the same way and proves itself as one that Apptainer built."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from toolkit.errors import BuildError, MalformedInputError, NoSpaceError
from toolkit.images.build.apptainer import apptainer
from toolkit.images.build.docker.layout import write_layout
from toolkit.images.build.follow import Follower
from toolkit.images.build.workspace import Workspace
from toolkit.images.recipe.bases import Base
from toolkit.images.recipe.block import CHECKS
from toolkit.images.recipe.expansion import exports
from toolkit.images.recipe.library import staged
from toolkit.images.recipe.resolve import Resolved
from toolkit.runtimes.discover.docker_engine import Engine

_LAYOUT = "image"  # named in the SIF, so it is no path of this machine


class Layout(Base, frozen=True, kw_only=True):
    """What a conversion begins with: what the engine wrote. No recipe can name it."""

    def header(self) -> tuple[str, ...]:
        return ("Bootstrap: oci", f"From: {_LAYOUT}")

    def detail(self) -> str:
        return "the image that the engine built"


def convert(
    engine: Engine, image: str, resolved: Resolved, place: Workspace, follower: Follower
) -> str:
    """Make ``place.sif`` of an image in the engine, and let it run its checks; the program that did it.

    Args:
        image: the engine's id of it.
        resolved: the recipe that it was built from.

    Raises:
        BuildError, NoSpaceError: it could not be written or packed, or did not pass a check.
        NeedsInstallError, ForbiddenError: there is no Apptainer, or this user cannot build by it.
    """
    save(engine, image, place.scratch / _LAYOUT)
    text = definition(resolved.name, engine.name, staged(resolved).environment)
    try:
        return apptainer.pack_archive(Layout(), text, place, follower, place.scratch)
    finally:
        shutil.rmtree(place.scratch / _LAYOUT, ignore_errors=True)


def definition(name: str, engine: str, environment: Mapping[str, str]) -> str:
    r"""Return the definition by which the SIF gets what an image of Docker's has no place for.

    Environment and labels come along by themselves, but for values with a dollar sign: Apptainer
    1.4 writes them as ``"${A:-"\$X"}"``, which its shell takes for a backslash and the value of X.
    """
    dollars = {variable: value for variable, value in environment.items() if "$" in value}
    return (
        f"# {name}: built by {engine}, and put into a SIF by toolkit.\n"
        + "\n".join(Layout().header())
        + (
            "\n\n%environment\n"
            + "\n".join(f"    export {setting}" for setting in exports(dollars, {}))
            if dollars
            else ""
        )
        + f'\n\n%runscript\n    exec "$@"\n\n%test\n    exec sh {CHECKS}/run\n'
    )


def save(engine: Engine, image: str, directory: Path) -> None:
    """Write an image of the engine into a new directory, in OCI's layout.

    Raises:
        BuildError: the engine ended in the middle, or does not have it.
        NoSpaceError: the disk was full.
    """
    import requests
    from docker.errors import DockerException

    try:
        write_layout(engine.client.images.get(image).save(), directory)
    # RequestException is an OSError.
    except (DockerException, requests.RequestException, MalformedInputError) as error:
        raise _not_saved(engine, error) from None
    except OSError as error:
        raise NoSpaceError(
            f"the image could not be written to {directory.parent}: {error.strerror}",
            place=str(directory.parent),
        ) from None


def _not_saved(engine: Engine, error: Exception) -> BuildError:
    return BuildError(
        f"{engine} did not hand the image over",
        place=engine.address,
        details=(str(error)[:300],),
        next_step="look at the engine's own log",
    )
