"""Horovod, built from its source against the framework that is already in the image."""

from __future__ import annotations

from typing import Literal

from toolkit.images.piece import VENV, Block, CheckCall, Piece, require_requirements
from toolkit.images.words import word

_WORK = "/opt/horovod-source"  # not below /var/tmp: the host shows a build its own
_FRAMEWORKS = ("pytorch", "tensorflow", "mxnet")
_MODULE = {"pytorch": "torch"}
_SAID = {"mpi": "MPI", "gloo": "Gloo"}
# What `mpirun` needs to start two ranks as root on a machine with less than two free cores.
_MPIRUN = (
    "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 "
    "mpirun -n 2 --oversubscribe --bind-to none --mca btl self,vader --mca plm isolated python3"
)


class Horovod(Block, frozen=True, kw_only=True):
    """``block = "horovod"``. Needs ``python`` and the framework before it, and ``openmpi`` where MPI is among ``operations``.

    Attributes:
        version: of the release on the package index.
        frameworks: what it is built for.
        operations: what carries its collectives.
    """

    version: str
    frameworks: tuple[Literal["pytorch"], ...] = ("pytorch",)
    operations: tuple[Literal["mpi", "gloo"], ...] = ("mpi", "gloo")

    def __post_init__(self) -> None:
        require_requirements((self.version,))
        if not self.frameworks or not self.operations:
            raise ValueError("Horovod needs at least one framework and one of mpi, gloo")

    def piece(self) -> Piece:
        return Piece(
            name="horovod",
            detail=f"{self.version} with {', '.join(_SAID[operation] for operation in self.operations)}",
            build_packages=("cmake", "g++", "make", "python3-dev", *(("libopenmpi-dev",) if "mpi" in self.operations else ())),
            lines=(*self._source(), *self._build(), *self._strip()),
            imports=("horovod", *(f"horovod.{_MODULE[framework]}" for framework in self.frameworks)),
            checks=self._checks(),
        )

    def _source(self) -> tuple[str, ...]:
        return (
            "pip install --no-compile cffi cloudpickle packaging psutil pyyaml setuptools wheel",
            f"mkdir {_WORK}",
            f"cd {_WORK}",
            # `pip download` alone would run setup.py, which fails without a compiler for every framework.
            f"pip download --no-deps --no-build-isolation --no-binary horovod {word(f'horovod=={self.version}')}",
            "tar -xzf horovod-*.tar.gz --strip-components=1",
            "# torch's headers are C++17 since 2.1; this release of Horovod asks for C++14.",
            "sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' CMakeLists.txt horovod/torch/CMakeLists.txt",
            "grep -q 'CMAKE_CXX_STANDARD 17' CMakeLists.txt",
            "grep -q 'CMAKE_CXX_STANDARD 17' horovod/torch/CMakeLists.txt",
            "# Without debugging symbols it compiles faster, and they would be stripped anyway.",
            "sed -i s/RelWithDebInfo/Release/ setup.py",
        )

    def _build(self) -> tuple[str, ...]:
        wanted = [f"HOROVOD_WITH_{framework.upper()}=1" for framework in self.frameworks]
        wanted += [f"HOROVOD_WITH_{operation.upper()}=1" for operation in self.operations]
        unwanted = [f"HOROVOD_WITHOUT_{framework.upper()}=1" for framework in _FRAMEWORKS if framework not in self.frameworks]
        unwanted += [f"HOROVOD_WITHOUT_{operation.upper()}=1" for operation in _SAID if operation not in self.operations]
        return (
            f"export {' '.join(wanted + unwanted)}",
            "# The last one is for a CMake of 4 or later, which else refuses the Gloo that Horovod carries.",
            'export MAKEFLAGS="-j$(nproc)" CMAKE_POLICY_VERSION_MINIMUM=3.5',
            "pip install -v --no-compile --no-deps --no-build-isolation .",
        )

    def _strip(self) -> tuple[str, ...]:
        # Not in the source's directory: it is about to go, and a program started from a directory that is gone finds nothing.
        return ("cd /", f"rm -r {_WORK}", f"find {VENV} -path '*/horovod/*/mpi_lib*.so' -exec strip --strip-unneeded {{}} +")

    def _checks(self) -> tuple[CheckCall, ...]:
        built = CheckCall(
            name="horovod-build",
            command=f"python3 horovod_build.py {' '.join((*self.frameworks, ',', *self.operations))}",
            scripts=("horovod_build.py",),
        )
        starts = {
            "mpi": f"timeout 300 {_MPIRUN} two_ranks.py mpi",
            "gloo": "timeout 300 horovodrun --disable-cache --gloo --network-interfaces lo -np 2 python3 two_ranks.py gloo",
        }
        ranks = (CheckCall(name=f"ranks-{one}", command=starts[one], scripts=("two_ranks.py",)) for one in self.operations)
        return (built, *ranks)
