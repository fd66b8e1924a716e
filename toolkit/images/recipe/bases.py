"""The bases of images. A new kind of base is a class and a line of ``BASES``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from toolkit.errors import UnknownImageError
from toolkit.images.recipe.block import (
    ABSOLUTE,
    DOCKER_VARIABLES,
    SIF_VARIABLES,
    require_all,
)
from toolkit.model.base import Model

if TYPE_CHECKING:
    from toolkit.images.recipe.catalogue import Release

# What a base may hold, by the names of blocks and of what blocks need.
Holdable = Literal[
    "compilers", "horovod", "nccl", "openmpi", "python", "ray", "tensorflow", "torch"
]
_REFERENCE = re.compile(
    r"[a-z0-9][A-Za-z0-9._-]*(?::\d+)?(?:/[a-z0-9][a-z0-9._-]*)*(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CONSTRAINT_OF_NGC = (
    "if [ -f /etc/pip/constraint.txt ]; then export PIP_CONSTRAINT=/etc/pip/constraint.txt; fi"
)
_PRELUDE_OF_DOCKER = (DOCKER_VARIABLES, _CONSTRAINT_OF_NGC)
_RELEASE = re.compile(r"[a-z]+\Z")


class BaseOutput(Model, frozen=True, kw_only=True):
    """The output of a base: what a definition gets from it.

    Attributes:
        detail: a description for people.
        header: the first lines of a definition for Apptainer.
        dockerfile: the reference that a Dockerfile begins from. It is for a reader; a build may
            name another place of the same image.
        reference: of an image of a registry, without a digest.
        holds: what the base has already, by the names of blocks: ``python``, ``openmpi``. A step of
            a recipe that brings one of these is dropped.
        prelude: lines that the shell of every step needs because of the base.
        setup: commands for the building machine, between the base and the first step; the image is
            at ``$APPTAINER_ROOTFS``.
        finish: commands for the end of the build, within the image.
        reads: the files or directories of this machine that the base is made from.
    """

    detail: str
    header: tuple[str, ...]
    dockerfile: str = "scratch"  # which is not the image
    reference: str = ""
    holds: frozenset[str] = frozenset()
    prelude: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    finish: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


class Base(Model, frozen=True, kw_only=True):
    """The options of a recipe's ``[base]``; a kind of base adds its own keys."""

    def output(self) -> BaseOutput:
        """Return what a definition gets from this base."""
        raise NotImplementedError


class Debootstrap(Base, frozen=True, kw_only=True):
    """``kind = "debootstrap"``: a small Debian, made of packages of a mirror.

    The mirror is an argument of the build.

    Attributes:
        release: its code name: ``bookworm``.
    """

    release: str

    def __post_init__(self) -> None:
        require_all((self.release,), _RELEASE, "code name of a Debian release")

    def output(self) -> BaseOutput:
        """Return what a definition gets from this base."""
        return BaseOutput(
            detail=f"debian {self.release}",
            header=(
                "Bootstrap: debootstrap",
                f"OSVersion: {self.release}",
                "MirrorURL: {{ mirror }}",
                "Include: ca-certificates",
            ),
            dockerfile=f"debian:{self.release}-slim",
            # Traces of the building machine and its mirror go.
            setup=(
                "# debootstrap copies these from the machine it runs on.",
                'for file in hostname hosts resolv.conf; do : > "$APPTAINER_ROOTFS/etc/$file"; '
                "done",
                "# What it downloaded, and what tells when that was.",
                'cd "$APPTAINER_ROOTFS/var" && rm -rf cache/apt/archives/*.deb cache/apt/*.bin '
                "lib/apt/lists/* cache/ldconfig/* cache/debconf/*-old lib/dpkg/*-old log/*.log "
                "log/apt",
            ),
            finish=(
                "echo '# The mirror of the build is not kept. "
                f"Write: deb <your mirror> {self.release} main' > /etc/apt/sources.list",
            ),
        )


class _LocalBase(Base, frozen=True, kw_only=True):
    """A file or directory of this machine; Docker's builder refuses a recipe with such a base.

    Attributes:
        path: of it, absolute.
        has: what it holds already, by the names of blocks: ``["python", "openmpi"]``.
    """

    path: str
    has: tuple[Holdable, ...] = ()

    def __post_init__(self) -> None:
        require_all((self.path,), ABSOLUTE, "absolute path")
        if "{{" in self.path or "}}" in self.path or self.path != self.path.strip():
            raise ValueError(f"{self.path!r} cannot be written in a definition")

    def _output(self, sif: str, reads: str) -> BaseOutput:
        return BaseOutput(
            detail=self.path,
            header=("Bootstrap: localimage", f"From: {sif}"),
            holds=frozenset(self.has),
            prelude=(SIF_VARIABLES, _CONSTRAINT_OF_NGC),
            reads=(reads,),
        )


class LocalImage(_LocalBase, frozen=True, kw_only=True):
    """``kind = "localimage"``: an existing SIF or directory."""

    def output(self) -> BaseOutput:
        """Return what a definition gets from this base."""
        return self._output(self.path, self.path)


class Definition(_LocalBase, frozen=True, kw_only=True):
    """``kind = "definition"``: what Apptainer builds of a definition, with all that it knows."""

    def output(self) -> BaseOutput:
        """Return what a definition gets from this base, once it is built and lies beside it."""
        directory = self.path.rpartition("/")[0]
        return self._output(f"{self.path.removesuffix('.def')}.sif", directory or "/")


class RegistryImage(Base, frozen=True, kw_only=True):
    """An image of a registry.

    Attributes:
        digest: that it must have: ``sha256:...``; without one, that of the tag when the image is
            built, which is recorded.
        archive: a file that holds it, for machines without a network: ``docker-archive:/path`` or
            ``oci-archive:/path``.
    """

    digest: str | None = None
    archive: str | None = None

    def __post_init__(self) -> None:
        if self.digest is not None and not _DIGEST.fullmatch(self.digest):
            raise ValueError(f"{self.digest!r} is no digest: sha256: and 64 hexadecimal digits")

    def _output(self, reference: str, detail: str, holds: Iterable[str]) -> BaseOutput:
        exact = f"{reference}{f'@{self.digest}' if self.digest else ''}"
        return BaseOutput(
            detail=detail,
            header=("Bootstrap: docker", f"From: {exact}"),
            dockerfile=exact,
            reference=reference,
            holds=frozenset(holds),
            prelude=_PRELUDE_OF_DOCKER,
        )


class Docker(RegistryImage, frozen=True, kw_only=True):
    """``kind = "docker"``: an image of any registry.

    Attributes:
        image: its reference: ``nvcr.io/nvidia/cuda:12.4.1-devel-ubuntu22.04``.
        has: what it holds already, by the names of blocks: ``["python", "openmpi", "compilers"]``.
    """

    image: str
    has: tuple[Holdable, ...] = ()

    def __post_init__(self) -> None:
        if not _REFERENCE.fullmatch(self.image):
            raise ValueError(f"{self.image!r} is no reference of an image: registry/path:tag")
        super().__post_init__()

    def output(self) -> BaseOutput:
        """Return what a definition gets from this base."""
        return self._output(self.image, self.image, self.has)


class Ngc(RegistryImage, frozen=True, kw_only=True):
    """``kind = "ngc"``: an image of NVIDIA's NGC, by framework and month.

    The catalogue knows what it holds.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``.
        release: year and month: ``22.03``.
    """

    framework: str
    release: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.find_release()

    def find_release(self) -> Release:
        """Return the catalogue's entry of the release.

        Raises:
            ValueError: The catalogue has none; names the nearest.
        """
        from toolkit.images.recipe import catalogue  # few bases are NVIDIA's

        try:
            return catalogue.find(self.framework, self.release)
        except UnknownImageError as error:
            close = f"; close: {error.close}" if error.close else ""
            raise ValueError(f"{error.cause}{close}") from None

    def output(self) -> BaseOutput:
        """Return what a definition gets from this base.

        All of NVIDIA's images have Python, Open MPI (HPC-X), NCCL, CUDA's and the system's
        compilers; TensorFlow's also had Horovod.
        """
        release = self.find_release()
        framework = {"pytorch": "torch"}.get(self.framework, self.framework)
        horovod = ("horovod",) if release.value("horovod") else ()
        holds = ("python", "openmpi", "compilers", "nccl", framework, *horovod)
        return self._output(release.reference, f"NGC {self.framework} {self.release}", holds)


BASES: dict[str, type[Base]] = {
    "debootstrap": Debootstrap,
    "definition": Definition,
    "docker": Docker,
    "localimage": LocalImage,
    "ngc": Ngc,
}
