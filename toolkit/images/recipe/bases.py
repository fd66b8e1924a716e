"""The bases of images. A new kind of base is a class and a line of ``BASES``."""

from __future__ import annotations

import re

from toolkit.errors import ToolkitError
from toolkit.images.recipe.block import (
    DOCKER_VARIABLES,
    require_debian_packages,
    require_directory,
)
from toolkit.model.base import Model
from toolkit.model.catalogue import Release

# What a base may hold, by the names of blocks and of what blocks need.
HOLDABLE = ("compilers", "horovod", "nccl", "openmpi", "python", "ray", "tensorflow", "torch")
_REFERENCE = re.compile(
    r"[a-z0-9][A-Za-z0-9._-]*(?::\d+)?(?:/[a-z0-9][a-z0-9._-]*)*(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PRELUDE_OF_DOCKER = (
    DOCKER_VARIABLES,
    "if [ -f /etc/pip/constraint.txt ]; then export PIP_CONSTRAINT=/etc/pip/constraint.txt; fi",
)
_RELEASE = re.compile(r"[a-z]+\Z")


def _require_known(has: tuple[str, ...]) -> None:
    wrong = next((part for part in has if part not in HOLDABLE), None)
    if wrong is not None:
        raise ValueError(f"unknown name {wrong!r}; use one of {', '.join(HOLDABLE)}")


class Base(Model, frozen=True, kw_only=True):
    """The options of a recipe's ``[base]``; a kind of base adds its own keys."""

    @property
    def holds(self) -> frozenset[str]:
        """Return what the base has already, by the names of blocks: ``python``, ``openmpi``.

        A step of a recipe that brings one of these is dropped.
        """
        return frozenset()

    def header(self) -> tuple[str, ...]:
        """Return the first lines of a definition for Apptainer."""
        raise NotImplementedError

    def dockerfile(self) -> str:
        """Return the reference that a Dockerfile begins from.

        It is for a reader; a build may name another place of the same image.
        """
        raise NotImplementedError

    def prelude(self) -> tuple[str, ...]:
        """Return the lines that the shell of every step needs because of the base."""
        return ()

    def detail(self) -> str:
        """Return a description for people."""
        raise NotImplementedError

    def setup(self) -> tuple[str, ...]:
        """Return commands for the building machine, between the base and the first step.

        The image is at ``$APPTAINER_ROOTFS``.
        """
        return ()

    def finish(self) -> tuple[str, ...]:
        """Return commands for the end of the build, within the image."""
        return ()

    def reads(self) -> tuple[str, ...]:
        """Return the files or directories of this machine that the base is made from."""
        return ()


class Debootstrap(Base, frozen=True, kw_only=True):
    """``kind = "debootstrap"``: a small Debian, made of packages of a mirror.

    The mirror is an argument of the build.

    Attributes:
        release: its code name: ``bookworm``.
        packages: what it begins with. debootstrap knows simple packages only: leave the rest to
            the step ``apt``.
    """

    release: str
    packages: tuple[str, ...] = ("ca-certificates",)

    def __post_init__(self) -> None:
        require_debian_packages(self.packages)
        if not _RELEASE.match(self.release):
            raise ValueError(f"{self.release!r} is no code name of a Debian release")

    def header(self) -> tuple[str, ...]:
        """Return the first lines of a definition for Apptainer."""
        include = (f"Include: {' '.join(self.packages)}",) if self.packages else ()
        return (
            "Bootstrap: debootstrap",
            f"OSVersion: {self.release}",
            "MirrorURL: {{ mirror }}",
            *include,
        )

    def dockerfile(self) -> str:
        """Return Docker's image of the same release."""
        return f"debian:{self.release}-slim"

    def detail(self) -> str:
        """Return a description for people."""
        return f"debian {self.release}"

    def setup(self) -> tuple[str, ...]:
        """Return commands that remove traces of the building machine and its mirror."""
        return (
            "# debootstrap copies these from the machine it runs on.",
            'for file in hostname hosts resolv.conf; do : > "$APPTAINER_ROOTFS/etc/$file"; done',
            "# What it downloaded, and what tells when that was.",
            'cd "$APPTAINER_ROOTFS/var" && rm -rf cache/apt/archives/*.deb cache/apt/*.bin '
            "lib/apt/lists/* cache/ldconfig/* cache/debconf/*-old lib/dpkg/*-old log/*.log log/apt",
        )

    def finish(self) -> tuple[str, ...]:
        """Return the command that writes a note into the list of mirrors."""
        return (
            "echo '# The mirror of the build is not kept. "
            f"Write: deb <your mirror> {self.release} main' > /etc/apt/sources.list",
        )


class LocalImage(Base, frozen=True, kw_only=True):
    """``kind = "localimage"``: an existing SIF or directory.

    Attributes:
        path: of it, absolute.
        has: what it holds already, by the names of blocks: ``["python", "openmpi"]``.
    """

    path: str
    has: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_directory(self.path)
        if "{{" in self.path or "}}" in self.path or self.path != self.path.strip():
            raise ValueError(f"{self.path!r} cannot be written in a definition")
        _require_known(self.has)

    @property
    def holds(self) -> frozenset[str]:
        """Return ``has``."""
        return frozenset(self.has)

    def header(self) -> tuple[str, ...]:
        """Return the first lines of a definition for Apptainer."""
        return ("Bootstrap: localimage", f"From: {self.path}")

    def reads(self) -> tuple[str, ...]:
        """Return the path."""
        return (self.path,)

    def dockerfile(self) -> str:
        """Return ``scratch``, which is not the image."""
        return "scratch"  # Docker knows no SIF: its builder refuses such a recipe

    def detail(self) -> str:
        """Return a description for people."""
        return self.path


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

    @property
    def reference(self) -> str:
        """Return the reference of the image, without a digest."""
        raise NotImplementedError

    def header(self) -> tuple[str, ...]:
        """Return the first lines of a definition for Apptainer."""
        return ("Bootstrap: docker", f"From: {self.dockerfile()}")

    def dockerfile(self) -> str:
        """Return the reference, with the digest if there is one."""
        return f"{self.reference}{f'@{self.digest}' if self.digest else ''}"

    def prelude(self) -> tuple[str, ...]:
        """Return lines that set the variables of the Docker image."""
        return _PRELUDE_OF_DOCKER


class Docker(RegistryImage, frozen=True, kw_only=True):
    """``kind = "docker"``: an image of any registry.

    Attributes:
        image: its reference: ``nvcr.io/nvidia/cuda:12.4.1-devel-ubuntu22.04``.
        has: what it holds already, by the names of blocks: ``["python", "openmpi", "compilers"]``.
    """

    image: str
    has: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _REFERENCE.fullmatch(self.image):
            raise ValueError(f"{self.image!r} is no reference of an image: registry/path:tag")
        super().__post_init__()
        _require_known(self.has)

    @property
    def reference(self) -> str:
        """Return the reference in the recipe."""
        return self.image

    @property
    def holds(self) -> frozenset[str]:
        """Return ``has``."""
        return frozenset(self.has)

    def detail(self) -> str:
        """Return the reference."""
        return self.image


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
        self.known()

    def known(self) -> Release:
        """Return the catalogue's entry of the release.

        Raises:
            ValueError: The catalogue has none; gives the nearest name.
        """
        from toolkit.images.recipe import catalogue  # reads a file; most definitions do without

        try:
            return catalogue.find(self.framework, self.release)
        except ToolkitError as error:
            raise ValueError(
                f"{error.cause}{f'; close: {error.close}' if error.close else ''}"
            ) from None

    @property
    def reference(self) -> str:
        """Return the reference in the catalogue."""
        return self.known().reference

    @property
    def holds(self) -> frozenset[str]:
        """Return what NVIDIA's images have.

        All have Python, Open MPI (HPC-X), NCCL, CUDA's and the system's compilers; TensorFlow's
        also had Horovod.
        """
        framework = {"pytorch": "torch"}.get(self.framework, self.framework)
        horovod = {"horovod"} if self.known().value("horovod") else set()
        return frozenset({"python", "openmpi", "compilers", "nccl", framework, *horovod})

    def detail(self) -> str:
        """Return the framework and the release."""
        return f"NGC {self.framework} {self.release}"


BASES: dict[str, type[Base]] = {
    "debootstrap": Debootstrap,
    "docker": Docker,
    "localimage": LocalImage,
    "ngc": Ngc,
}
