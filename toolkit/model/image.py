"""The manifest of a built image, which is in its SIF; and what runtimes use without one."""

from __future__ import annotations

from typing import Any, Literal

from toolkit.model.base import Model, Stored


class Verdict(Model, frozen=True, kw_only=True):
    """The result of one check of an image.

    Attributes:
        name: of the check.
        outcome: ``unchecked``: the check could not be made; ``detail`` has the reason.
        detail: the result as text for users.
        when: in UTC, ISO 8601.
        site: the cluster that the result is valid for; empty: it is valid everywhere.
    """

    name: str
    outcome: Literal["passed", "failed", "unchecked"]
    detail: str = ""
    when: str = ""
    site: str = ""


class BaseImage(Model, frozen=True, kw_only=True):
    """The base that an image was built from.

    Attributes:
        reference: as users write it: ``debian bookworm``, ``nvcr.io/nvidia/pytorch:22.03-py3``, a
            path.
        digest: of the image in its registry, or of the file. Empty where there is none, as for a
            Debian mirror, whose packages are listed one by one.
    """

    reference: str
    digest: str = ""


class Layer(Model, frozen=True, kw_only=True):
    """The packed changes of one build step: its name and the SHA-256 of its file."""

    name: str
    sha256: str


class Packages(Model, frozen=True, kw_only=True):
    """All packages of an image, by name, with their versions."""

    apt: dict[str, str] = {}
    pip: dict[str, str] = {}


class Python(Model, frozen=True, kw_only=True):
    """A Python of an image and its modules.

    Attributes:
        path: of the interpreter.
        version: of Python: ``3.11.2``.
        modules: all top-level modules that it can import, those of the standard library too,
            sorted.
    """

    path: str
    version: str
    modules: tuple[str, ...] = ()


class Signature(Model, frozen=True, kw_only=True):
    """A signature of an image.

    Attributes:
        kind: of key.
        fingerprint: of the key: SHA-256 of the public key in DER, or PGP's own.
        signer: the owner that the key names; empty for PEM keys, which name no owner.
        when: in UTC, ISO 8601.
    """

    kind: Literal["pem", "pgp"]
    fingerprint: str
    signer: str = ""
    when: str = ""


class Manifest(Stored, frozen=True, kw_only=True):
    """The manifest of a built image, which is in the SIF.

    It is written when a build has passed its checks.

    Attributes:
        name: of the recipe.
        sif_id: the id in the SIF's header (32 hexadecimal digits), which ties notes to that one
            file; empty in the SIF itself.
        size: of the SIF, in bytes; 0 in the SIF itself.
        recipe_hash: hash of all inputs of the build: recipe, definition, and whatever else changes
            the contents.
        built: time of the build, in UTC, ISO 8601.
        seconds: duration of each step, for the next build's progress.
        frameworks: the frameworks that a script can import, and their versions: ``{"torch":
            "2.13.0+cpu", "horovod": "0.28.1"}``.
        mpi: the ``srun --mpi`` types that the image's MPI supports, best first: ``("pmix",)``;
            empty if there is no MPI.
        gpu_code: the GPU architectures that frameworks, and what was compiled for the image, have
            machine code for: ``{"torch": ("sm_75", "sm_80")}``; empty: not known.
        runscript: the image's own runscript is ``exec "$@"``, so that `run` may be used; else
            `exec`.
        builder: the program and version that built it.
        verified: the latest result of each check and site, from the build and later.
        base: the base that it was built from.
        packages: its packages, as its own package managers list them.
        pythons: its Pythons, the one on PATH first; empty in manifests written before they were
            recorded.
        programs: the names of all programs on its PATH, sorted; empty in manifests written before
            they were recorded.
        system: its operating system, by its own name for it.
        horovod: the features that Horovod's build recorded; empty if there is no Horovod.
        tools: the programs that it was built with, and their versions.
        command: the command that builds it again.
        locked: SHA-256 of the lock that it was built from; empty: it was built without a lock.
        partition: SHA-256 of its file system; file systems with equal hashes are identical byte for
            byte. Empty until it is first computed.
        signatures: its signatures.
        layers: the layers that it was assembled from, the base first; empty if it was packed in one
            go.
        origin: the registry reference that it was pulled from; empty: it was built on this machine.
    """

    name: str
    sif_id: str
    size: int
    recipe_hash: str
    built: str
    seconds: dict[str, float] = {}
    frameworks: dict[str, str] = {}
    mpi: tuple[str, ...] = ()
    gpu_code: dict[str, tuple[str, ...]] = {}
    runscript: bool = True
    builder: str = ""
    verified: tuple[Verdict, ...] = ()
    base: BaseImage | None = None
    packages: Packages = Packages()
    pythons: tuple[Python, ...] = ()
    programs: tuple[str, ...] = ()
    system: str = ""
    horovod: dict[str, Any] = {}
    tools: dict[str, str] = {}
    command: str = ""
    locked: str = ""
    partition: str = ""
    signatures: tuple[Signature, ...] = ()
    layers: tuple[Layer, ...] = ()
    origin: str = ""

    def detail_of(self, check: str) -> str:
        """Return the detail of a check that passed: ``Open MPI 4.1.4 speaks pmix``; else empty."""
        passed = (each for each in self.verified if each.name == check)
        return next((each.detail for each in passed if each.outcome == "passed"), "")


class Environment(Model, frozen=True, kw_only=True):
    """A Python on the host and its packages.

    Attributes:
        name: as shown to users.
        kind: conda, a virtual environment, or the host itself (with its modules).
        prefix: its directory; the host's own Python needs no activation.
        python: path of the interpreter.
        torchrun: the environment has the program torchrun.
        mpirun: the first line of ``mpirun --version`` there; None: there is no mpirun.
        manifest: what it holds, in the form that is known of images.
        variables: variables that the user set with `conda env config vars set`.
    """

    name: str
    kind: Literal["conda", "venv", "host"]
    prefix: str
    python: str
    torchrun: bool = False
    mpirun: str | None = None
    manifest: Manifest | None = None
    variables: dict[str, str] = {}


class Engine(Model, frozen=True, kw_only=True):
    """A Docker or podman engine.

    Attributes:
        program: its client: ``docker`` or ``podman``.
        address: the engine's address for its client, if the user's settings name one; empty: the
            client finds the engine by itself.
        rootless: the engine runs as the user, who is root in its containers.
        nvidia: the engine can give containers the node's GPUs.
    """

    program: str
    address: str = ""
    rootless: bool = False
    nvidia: bool = False
