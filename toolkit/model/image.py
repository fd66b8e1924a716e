"""What is known of a built image: the manifest that lies beside its SIF."""

from __future__ import annotations

from typing import Any, Literal

from toolkit.model.base import Model


class Verdict(Model, frozen=True, kw_only=True):
    """One thing that was verified of an image, and how it came out.

    Attributes:
        name: of the check.
        outcome: ``unchecked``: it could not be found out; ``detail`` says why.
        detail: what was found, for people.
        when: in UTC, ISO 8601.
        site: the cluster that it holds for; empty: it holds everywhere.
    """

    name: str
    outcome: Literal["passed", "failed", "unchecked"]
    detail: str = ""
    when: str = ""
    site: str = ""


class Check(Model, frozen=True, kw_only=True):
    """What one check that an image carries said when it was built."""

    name: str
    passed: bool
    detail: str = ""


class BaseImage(Model, frozen=True, kw_only=True):
    """What an image began as.

    Attributes:
        reference: as people name it: ``debian bookworm``, ``nvcr.io/nvidia/pytorch:22.03-py3``, a path.
        digest: that says which one it was: of the image in its registry, or of the file; empty where nothing does, as with a mirror of
            Debian, whose packages are named one by one.
    """

    reference: str
    digest: str = ""


class Layer(Model, frozen=True, kw_only=True):
    """What a step changed, as it was packed: its name, and the SHA-256 of its file."""

    name: str
    sha256: str


class Packages(Model, frozen=True, kw_only=True):
    """Every package in an image, by name, with its version."""

    apt: dict[str, str] = {}
    pip: dict[str, str] = {}


class Python(Model, frozen=True, kw_only=True):
    """A Python of an image, and what it can import.

    Attributes:
        path: of the interpreter.
        version: of Python: ``3.11.2``.
        modules: every top-level module that it can import, the standard ones too, sorted.
    """

    path: str
    version: str
    modules: tuple[str, ...] = ()


class Signature(Model, frozen=True, kw_only=True):
    """Who signed an image.

    Attributes:
        kind: of key.
        fingerprint: of the key: SHA-256 of the public key in DER, or PGP's own.
        signer: as the key names its owner; PEM keys name nobody.
        when: in UTC, ISO 8601.
    """

    kind: Literal["pem", "pgp"]
    fingerprint: str
    signer: str = ""
    when: str = ""


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
        checks: what the image's own checks said; of images built before there was ``verified``, in which they are since.
        verified: what was verified, by the build and since: the latest of each check and site.
        base: what it began as.
        packages: what is in it, as its own package managers say.
        pythons: its Pythons, that on PATH first; empty in manifests written before they were recorded.
        system: its operating system, as it calls itself.
        horovod: what Horovod's build noted of itself; empty where there is no Horovod.
        definition_hash: SHA-256 of the definition that was built.
        tools: what it was built with, by name, and its version.
        command: that builds it again.
        locked: SHA-256 of the lock that it was built from; empty: it was built from what there was.
        partition: SHA-256 of its file system; equal ones hold the same in every byte. Empty where nobody has asked for it yet.
        signatures: who signed it.
        layers: what it was put together from, the base first; empty where it was packed at once.
        products: SHA-256 of what was compiled for it; empty where nothing was.
        origin: the place in a registry that it was fetched from; empty: it was built here.
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
    verified: tuple[Verdict, ...] = ()
    base: BaseImage | None = None
    packages: Packages = Packages()
    pythons: tuple[Python, ...] = ()
    system: str = ""
    horovod: dict[str, Any] = {}
    definition_hash: str = ""
    tools: dict[str, str] = {}
    command: str = ""
    locked: str = ""
    partition: str = ""
    signatures: tuple[Signature, ...] = ()
    layers: tuple[Layer, ...] = ()
    products: str = ""
    origin: str = ""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What was verified, also of an image that knows its own checks only."""
        old = (
            Verdict(
                name=check.name,
                outcome="passed" if check.passed else "failed",
                detail=check.detail,
                when=self.built,
            )
            for check in self.checks
            if check.name not in {verdict.name for verdict in self.verified}
        )
        return (*old, *self.verified)
