"""What is known of the releases of NVIDIA's NGC images: facts, each with its source."""

from __future__ import annotations

from toolkit.model.base import Model

NONE = "none"  # the value of a fact that something is known not to be there


class Fact(Model, frozen=True, kw_only=True):
    """One thing that is known.

    Attributes:
        value: as its source writes it; ``none``: known not to be there.
        source: where it comes from, in words.
        note: what has to be known about it.
    """

    value: str
    source: str
    note: str = ""


class Release(Model, frozen=True, kw_only=True):
    """A release of an NGC image. What is not among ``facts`` is unknown: every property is None then.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``.
        release: year and month: ``22.03``.
        facts: by name, one of ``FACTS``.
    """

    framework: str
    release: str
    facts: dict[str, Fact]

    @property
    def name(self) -> str:
        """``pytorch:22.03``."""
        return f"{self.framework}:{self.release}"

    @property
    def month(self) -> tuple[int, int]:
        """``(22, 3)``, for comparing."""
        year, _, month = self.release.partition(".")
        return int(year), int(month)

    @property
    def reference(self) -> str:
        """Where the image is: ``nvcr.io/nvidia/pytorch:22.03-py3``."""
        return self.facts["reference"].value

    def value(self, fact: str) -> str | None:
        """The value of a fact; None where it is unknown, or where the thing is known not to be there."""
        found = self.facts.get(fact)
        return None if found is None or found.value == NONE else found.value

    @property
    def version(self) -> str | None:
        """Of the framework."""
        return self.value("version")

    @property
    def python(self) -> str | None:
        return self.value("python")

    @property
    def ubuntu(self) -> str | None:
        return self.value("ubuntu")

    @property
    def cuda(self) -> str | None:
        return self.value("cuda")

    @property
    def nccl(self) -> str | None:
        return self.value("nccl")

    @property
    def mpi(self) -> str | None:
        """The version of Open MPI."""
        return self.value("openmpi")

    @property
    def driver(self) -> str | None:
        """The oldest driver that it is made for."""
        return self.value("driver")

    @property
    def horovod(self) -> str | None:
        return self.value("horovod")

    @property
    def constraints(self) -> str | None:
        """pip's constraint file within the image."""
        return self.value("constraints")


# The facts that there can be, in the order in which people see them, and what they are.
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
