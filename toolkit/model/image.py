"""What is known of a built image: the manifest that lies beside its SIF."""

from __future__ import annotations

from toolkit.model.base import Model


class Check(Model, frozen=True, kw_only=True):
    """One thing that was verified of an image, and how it came out."""

    name: str
    passed: bool
    detail: str = ""


class Manifest(Model, frozen=True, kw_only=True):
    """Written beside ``<name>.sif`` as ``<name>.json`` when a build has passed its checks.

    Attributes:
        name: of the recipe.
        sif_id: the id in the SIF's header (32 hexadecimal digits): ties this manifest to that one file.
        size: of the SIF, in bytes.
        recipe_hash: of the recipe as it is built: recipe, definition, and what else changes the contents.
        built: when, in UTC, ISO 8601.
        seconds: how long each step took, for the next build's progress.
        frameworks: what a script can import, and its version: ``{"torch": "2.13.0+cpu", "horovod": "0.28.1"}``.
        mpi: what the image's MPI can be started by, best first: ``("pmix",)``; empty where there is no MPI.
        runscript: the image's own runscript is ``exec "$@"``, so that `run` may be used; else `exec`.
        builder: the program and version that built it.
        checks: what was verified.
    """

    name: str
    sif_id: str
    size: int
    recipe_hash: str
    built: str
    seconds: dict[str, float] = {}
    frameworks: dict[str, str] = {}
    mpi: tuple[str, ...] = ()
    runscript: bool = True
    builder: str = ""
    checks: tuple[Check, ...] = ()
