"""NVIDIA's nccl-tests, built against the base's CUDA, NCCL and MPI.

They measure the bandwidth of collectives, ``all_reduce_perf`` above all.
"""

from __future__ import annotations

import re

from toolkit.images.recipe.block import HOST_WHEELS, WHEELS, Block, BlockOutput, CheckCall
from toolkit.images.recipe.quoting import quote_word

_WORK = "/opt/nccl-tests-source"
_PLACE = "/opt/nccl-tests"
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


class NcclTests(Block, frozen=True, kw_only=True):
    """``block = "nccl-tests"``. Needs a base with CUDA, NCCL and compilers, such as NGC's.

    Attributes:
        source: of its repository.
        version: tag.
        commit: that the tag must be.
        mpi_home: where the base's MPI is.
    """

    source: str = "https://github.com/NVIDIA/nccl-tests.git"
    version: str
    commit: str | None = None
    mpi_home: str = "/usr/local/mpi"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"v?\d+(\.\d+)+", self.version):
            raise ValueError(f"{self.version!r} is no tag of nccl-tests, such as v2.13.6")
        if self.commit is not None and not _COMMIT.match(self.commit):
            raise ValueError(f"{self.commit!r} is no commit: 40 hexadecimal digits")
        if not self.source.startswith("https://"):
            raise ValueError(f"{self.source!r} is no https address")

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
        archive = f"nccl-tests-{self.version}.tar"
        clone = f"git clone --depth 1 --branch {quote_word(self.version)} {quote_word(self.source)}"
        checked = (
            (f'test "$(git -C {_WORK} rev-parse HEAD)" = {self.commit}',) if self.commit else ()
        )
        return BlockOutput(
            name="nccl-tests",
            detail=self.version,
            build_packages=("git", "make"),
            build_lines=(
                f"mkdir -p {WHEELS} {_PLACE}",
                f"cp {HOST_WHEELS}/{quote_word(archive)} {WHEELS}/ 2>/dev/null || {clone} {_WORK}",
                f"if [ -d {_WORK} ]; then",
                *(f"    {line}" for line in checked),
                f'    make -C {_WORK} -j"$(nproc)" MPI=1 MPI_HOME={quote_word(self.mpi_home)} '
                "CUDA_HOME=/usr/local/cuda",
                f"    tar -C {_WORK}/build -cf {WHEELS}/{quote_word(archive)} .",
                f"    rm -r {_WORK}",
                "fi",
            ),
            lines=(f"mkdir -p {_PLACE}", f"tar -C {_PLACE} -xf {WHEELS}/{quote_word(archive)}"),
            path=(_PLACE,),
            # Without a GPU it cannot run; that it is there and finds its libraries can be seen
            # anywhere.
            checks=(
                CheckCall(
                    name="nccl-tests",
                    command=f"sh nccl_tests.sh {_PLACE}/all_reduce_perf",
                    scripts=("nccl_tests.sh",),
                ),
            ),
        )
