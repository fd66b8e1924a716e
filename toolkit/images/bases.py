"""What an image can begin as. A new kind of base is a class and a line of ``BASES``."""

from __future__ import annotations

import re

from toolkit.images.piece import require_debian_packages, require_directory
from toolkit.model.base import Model

_RELEASE = re.compile(r"[a-z]+\Z")


class Base(Model, frozen=True, kw_only=True):
    """The options of a recipe's ``[base]``; a kind of base adds its own keys."""

    def header(self) -> tuple[str, ...]:
        """The first lines of the definition."""
        raise NotImplementedError

    def detail(self) -> str:
        """What it is, for people."""
        raise NotImplementedError

    def setup(self) -> tuple[str, ...]:
        """Commands for the machine that builds, between the base and the first step; the image is at ``$APPTAINER_ROOTFS``."""
        return ()

    def finish(self) -> tuple[str, ...]:
        """Commands for the end of the build, within the image."""
        return ()


class Debootstrap(Base, frozen=True, kw_only=True):
    """``kind = "debootstrap"``: a small Debian, package by package from a mirror that is told when it is built.

    Attributes:
        release: its code name: ``bookworm``.
        packages: what it begins with. debootstrap knows simple packages only: leave the rest to the step ``apt``.
    """

    release: str
    packages: tuple[str, ...] = ("ca-certificates",)

    def __post_init__(self) -> None:
        require_debian_packages(self.packages)
        if not _RELEASE.match(self.release):
            raise ValueError(f"{self.release!r} is no code name of a Debian release")

    def header(self) -> tuple[str, ...]:
        include = (f"Include: {' '.join(self.packages)}",) if self.packages else ()
        return ("Bootstrap: debootstrap", f"OSVersion: {self.release}", "MirrorURL: {{ mirror }}", *include)

    def detail(self) -> str:
        return f"debian {self.release}"

    def setup(self) -> tuple[str, ...]:
        return (
            "# debootstrap copies these from the machine it runs on.",
            'for file in hostname hosts resolv.conf; do : > "$APPTAINER_ROOTFS/etc/$file"; done',
        )

    def finish(self) -> tuple[str, ...]:
        return (f"echo '# The mirror of the build is not kept. Write: deb <your mirror> {self.release} main' > /etc/apt/sources.list",)


class LocalImage(Base, frozen=True, kw_only=True):
    """``kind = "localimage"``: a SIF or a directory that is there already.

    Attributes:
        path: where it is, absolute.
    """

    path: str

    def __post_init__(self) -> None:
        require_directory(self.path)
        if "{{" in self.path or "}}" in self.path or self.path != self.path.strip():
            raise ValueError(f"{self.path!r} cannot be written in a definition")

    def header(self) -> tuple[str, ...]:
        return ("Bootstrap: localimage", f"From: {self.path}")

    def detail(self) -> str:
        return self.path


BASES: dict[str, type[Base]] = {"debootstrap": Debootstrap, "localimage": LocalImage}
