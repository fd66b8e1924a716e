"""Facts about the releases of NVIDIA's NGC images, each with its source."""

from __future__ import annotations

from toolkit.model.base import Model

NONE = "none"  # the value of a fact if the release is known not to have the component


class Fact(Model, frozen=True, kw_only=True):
    """One property of a release.

    Attributes:
        value: as its source writes it; ``none``: the release is known not to have it.
        source: title or address of the document that states it.
        note: a remark for readers.
    """

    value: str
    source: str
    note: str = ""


class Release(Model, frozen=True, kw_only=True):
    """A release of an NGC image.

    A fact that is missing from ``facts`` is unknown; its property is None then.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``.
        release: year and month: ``22.03``.
        facts: by name; the names are those of ``FACTS``.
    """

    framework: str
    release: str
    facts: dict[str, Fact]

    @property
    def name(self) -> str:
        """Return the name in the catalogue: ``pytorch:22.03``."""
        return f"{self.framework}:{self.release}"

    @property
    def month(self) -> tuple[int, int]:
        """Return year and month as numbers, for comparing: ``(22, 3)``."""
        year, _, month = self.release.partition(".")
        return int(year), int(month)

    @property
    def reference(self) -> str:
        """Return the image reference: ``nvcr.io/nvidia/pytorch:22.03-py3``."""
        return self.facts["reference"].value

    def value(self, fact: str) -> str | None:
        """Return the value of a fact; None if it is unknown or ``none``."""
        known = self.facts.get(fact)
        return None if known is None or known.value == NONE else known.value

    @property
    def version(self) -> str | None:
        """Return the version of the framework."""
        return self.value("version")

    @property
    def python(self) -> str | None:
        """Return the version of Python."""
        return self.value("python")

    @property
    def ubuntu(self) -> str | None:
        """Return the version of Ubuntu."""
        return self.value("ubuntu")

    @property
    def cuda(self) -> str | None:
        """Return the version of CUDA."""
        return self.value("cuda")

    @property
    def nccl(self) -> str | None:
        """Return the version of NCCL."""
        return self.value("nccl")

    @property
    def mpi(self) -> str | None:
        """Return the version of Open MPI."""
        return self.value("openmpi")

    @property
    def driver(self) -> str | None:
        """Return the oldest NVIDIA driver that the release supports."""
        return self.value("driver")

    @property
    def horovod(self) -> str | None:
        """Return the version of Horovod."""
        return self.value("horovod")

    @property
    def constraints(self) -> str | None:
        """Return the path of pip's constraint file in the image."""
        return self.value("constraints")


# The names of all facts, in the order in which they are printed, and their labels.
FACTS: dict[str, str] = {
    "reference": "reference",
    "version": "framework",
    "python": "Python",
    "ubuntu": "Ubuntu",
    "cuda": "CUDA",
    "nccl": "NCCL",
    "openmpi": "Open MPI",
    "hpcx": "HPC-X",
    "driver": "driver",
    "horovod": "Horovod",
    "constraints": "constraints",
}
