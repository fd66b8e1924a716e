"""Blocks that compile: Horovod and NVIDIA's nccl-tests, against what is already in the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from toolkit.images.recipe.block import (
    HOST_WHEELS,
    WHEELS,
    Block,
    CheckCall,
    Ground,
    Step,
)
from toolkit.images.recipe.cuda import BUILD_VARIABLES
from toolkit.images.recipe.quoting import quote_word, quote_words

_WORK = "/opt/horovod-source"  # not below /var/tmp: the host shows a build its own
_FRAMEWORKS = ("pytorch", "tensorflow", "mxnet")
_MODULE = {"pytorch": "torch"}
_LIBRARIES = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}
_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"  # of its source
_CUDA = "/usr/local/cuda"
# What it needs to run, in versions that are known to work with it. A base with a Python of its own
# keeps its own versions.
_NEEDS = ("cffi==2.1.1", "cloudpickle==3.1.2", "packaging==26.3", "psutil==7.2.2", "pyyaml==6.0.3")
_BUILD_NEEDS = ("setuptools==84.2.1", "wheel==0.48.0")
# What `mpirun` needs to start two ranks as root on a machine with less than two free cores.
_MPIRUN = (
    "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 "
    "mpirun -n 2 --oversubscribe --bind-to none --mca btl self,vader --mca plm isolated python3"
)
_STREAM = (
    "namespace stream_executor { namespace gpu { "
    "inline GpuStreamHandle AsGpuStreamValue(Stream* stream) { "
    "return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream); } } }"
)
_SHOWS_NCCL = CheckCall(
    name="check-build",
    command="check_build.py",
    scripts=("check_build.py",),
    is_python=True,
)
_CLONE = "/opt/nccl-tests-source"
_TESTS = "/opt/nccl-tests"


def rank_checks(operations: Sequence[str], *, has_torch: bool) -> tuple[CheckCall, ...]:
    """Return the checks that have two ranks of Horovod sum.

    NCCL needs a GPU, which a building machine need not have: `toolkit image verify` checks it.

    Args:
        operations: that carry the sums.
        has_torch: the ranks sum by torch. Those of TensorFlow are not forked, but started.
    """
    gloo = "timeout 300 horovodrun --disable-cache --gloo --network-interfaces lo -np 2 python3"
    mpi = f"timeout 300 {_MPIRUN} ranks.py horovod mpi 2 1"
    calls = {
        "mpi": CheckCall(name="ranks-mpi", command=mpi, scripts=("ranks.py",)),
        "gloo": CheckCall(
            name="ranks-gloo",
            command=f"{'' if has_torch else f'{gloo} '}ranks.py horovod gloo 2 1"
            f"{' start' if has_torch else ''}",
            scripts=("ranks.py",),
            is_python=has_torch,
        ),
    }
    return tuple(calls[name] for name in operations if name in calls)


class Horovod(Block, frozen=True, kw_only=True):
    """``block = "horovod"``. Needs ``python`` and the framework before it.

    Where MPI is among ``operations``, it needs ``openmpi`` as well.

    Attributes:
        version: of the release on the package index.
        frameworks: that it is built for.
        operations: the libraries that carry its collectives; ``nccl`` needs a base with CUDA, or
            the step ``cuda``.
        from_base: the base has it, and nothing is built; it is checked like a built one.
    """

    version: Literal["0.28.1"] = "0.28.1"
    frameworks: tuple[Literal["pytorch", "tensorflow"], ...] = ("pytorch",)
    operations: tuple[Literal["mpi", "gloo", "nccl"], ...] = ("mpi", "gloo")
    from_base: bool = False

    def __post_init__(self) -> None:
        if not self.frameworks or not {"mpi", "gloo"} & set(self.operations):
            raise ValueError(
                "Horovod needs at least one framework, and one of mpi, gloo to meet by"
            )

    def output_on(self, ground: Ground) -> Step:
        """Return what the definition gets from this step where this can be relied on."""
        own = "python" in ground.holds
        needs = quote_words(need.partition("==")[0] if own else need for need in _NEEDS)
        by_step = "nccl" in self.operations and "cuda" in ground.holds
        mpi = ("libopenmpi-dev",) if "mpi" in self.operations else ()
        imports = (
            "horovod",
            *(f"horovod.{_MODULE.get(framework, framework)}" for framework in self.frameworks),
        )
        if self.from_base:
            return Step(
                name="horovod", detail="the base's own", imports=imports, checks=self._checks()
            )
        return Step(
            name="horovod",
            detail=f"{self.version} with {', '.join(map(_LIBRARIES.__getitem__, self.operations))}",
            build_packages=()
            if "compilers" in ground.holds
            else ("cmake", "g++", "make", "python3-dev", *mpi),
            build_lines=(
                *self._source(own, by_step=by_step),
                *self._compile(needs, by_step=by_step),
            ),
            lines=(
                f"pip install --no-compile {needs}",
                f"pip install --no-compile --no-deps --no-index {WHEELS}/horovod-*.whl",
            ),
            imports=imports,
            brings=("horovod",),
            checks=(*self._checks(), *((_SHOWS_NCCL,) if by_step else ())),
        )

    def _source(self, own: bool, *, by_step: bool) -> tuple[str, ...]:
        needs = quote_words(need.partition("==")[0] if own else need for need in _BUILD_NEEDS)
        archive = f"horovod-{self.version}.tar.gz"
        return (
            f"mkdir -p {WHEELS} {_WORK}",
            "# What was compiled before against the same things need not be compiled again.",
            f"cp {HOST_WHEELS}/horovod-{quote_word(self.version)}-*.whl {WHEELS}/ "
            "2>/dev/null || true",
            f"pip install --no-compile {needs}",
            f"cd {_WORK}",
            # `pip download` alone would run setup.py, which fails without a compiler for every
            # framework.
            "pip download --no-deps --no-build-isolation --no-binary horovod "
            + quote_word(f"horovod=={self.version}"),
            f"echo {quote_word(f'{_SHA256}  {archive}')} | sha256sum -c -",
            f"tar -xzf {quote_word(archive)} --strip-components=1",
            *self._patches(by_step=by_step),
        )

    def _patches(self, *, by_step: bool) -> tuple[str, ...]:
        made: list[str] = []
        if "pytorch" in self.frameworks:
            made += [
                "# torch's headers are C++17 since 2.1; this release of Horovod asks for C++14.",
                'if python3 -c "import sys, torch; '
                "sys.exit(tuple(map(int, torch.__version__.split('.')[:2])) < (2, 1))\"; then "
                "sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' "
                "CMakeLists.txt horovod/torch/CMakeLists.txt; "
                "grep -q 'CMAKE_CXX_STANDARD 17' CMakeLists.txt; fi",
            ]
        if "tensorflow" in self.frameworks:
            made += [
                "# So are TensorFlow's; and what it offers XLA is another thing since 2.12.",
                'if python3 -c "import sys, importlib.metadata as m; '
                "found = [d for d in m.distributions() if d.metadata['Name'] in "
                "('tensorflow', 'tensorflow-cpu', 'tensorflow_cpu')]; "
                "sys.exit(not found or tuple(map(int, found[0].version.split('.')[:2])) < (2, 12))"
                '"; then '
                "sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' "
                "CMakeLists.txt horovod/tensorflow/CMakeLists.txt; "
                "sed -i '/xla_mpi_ops.cc/d' horovod/tensorflow/CMakeLists.txt; fi",
            ]
        if "nccl" in self.operations:
            # The compiler of CUDA 10 does not know C++17, and that of 11 needs no change.
            old = "" if by_step else f"{_CUDA}/bin/nvcc --version | grep -q 'release 1[01][.]' || "
            made += [
                "# CUDA's headers ask for C++17 since 13.",
                f"{old}sed -i 's/CMAKE_CUDA_STANDARD 11/CMAKE_CUDA_STANDARD 17/' "
                "horovod/common/ops/cuda/CMakeLists.txt",
            ]
        if by_step and "tensorflow" in self.frameworks:
            made += [
                "# TensorFlow no longer exports this function.",
                "sed -i -e '/^GpuStreamHandle AsGpuStreamValue(Stream/d' "
                f"-e 's/^using namespace tensorflow;/{_STREAM}\\n&/' "
                "horovod/tensorflow/mpi_ops.cc",
            ]
        return (
            *made,
            "# Without debugging symbols it compiles faster, and they would be stripped anyway.",
            "sed -i s/RelWithDebInfo/Release/ setup.py",
        )

    def _compile(self, needs: str, *, by_step: bool) -> tuple[str, ...]:
        """Return the lines that compile; ``by_step``: by the compiler of the step ``cuda``."""
        gpu = "nccl" in self.operations
        wanted = [f"HOROVOD_WITH_{framework.upper()}=1" for framework in self.frameworks]
        wanted += [
            f"HOROVOD_WITH_{operation.upper()}=1"
            for operation in self.operations
            if operation != "nccl"
        ]
        unwanted = [
            f"HOROVOD_WITHOUT_{framework.upper()}=1"
            for framework in _FRAMEWORKS
            if framework not in self.frameworks
        ]
        unwanted += [
            f"HOROVOD_WITHOUT_{operation.upper()}=1"
            for operation in ("mpi", "gloo")
            if operation not in self.operations
        ]
        # A building machine has no driver: CUDA's stand-in for it is found while Horovod is linked,
        # and not afterwards.
        stubs = (f"ldconfig {_CUDA}/lib64/stubs",) if gpu and not by_step else ()
        # Horovod would else link NCCL's archive of NVIDIA's images: a second one beside torch's.
        # The headers of gcc 13 read fewer others.
        cuda = (
            f"export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME={_CUDA} "
            'HOROVOD_NCCL_LINK=SHARED CXXFLAGS="-include stdexcept"'
        )
        if by_step:
            cuda = f". {BUILD_VARIABLES}; export HOROVOD_GPU_OPERATIONS=NCCL"
        paths: tuple[str, ...] = ()
        if by_step and "tensorflow" in self.frameworks:  # which loads NCCL when it is used
            path = "$NCCL_HOME/lib:$NCCL_HOME/../cuda_runtime/lib"
            paths = (f'export LDFLAGS="-s -Wl,-rpath,{path}"',)
        listed = (
            f"python3 -m zipfile -e {WHEELS}/horovod-*.whl unpacked",
            "list_gpu_code horovod \"$(find unpacked -name '*.so')\"",
        )
        return (
            f"export {' '.join(wanted + unwanted)}",
            *((cuda,) if gpu else ()),
            "# CMake's is for a version of 4 or later, which else refuses the Gloo that Horovod "
            "carries; -s leaves the symbols out.",
            'export MAKEFLAGS="-j$(nproc)" CMAKE_POLICY_VERSION_MINIMUM=3.5 LDFLAGS=-s',
            *paths,
            f"pip install --no-compile {needs}",
            *stubs,
            f"ls {WHEELS}/horovod-*.whl 2>/dev/null || "
            f"pip wheel -v --no-deps --no-build-isolation -w {WHEELS} .",
            *(("ldconfig",) if stubs else ()),
            *(listed if by_step else ()),
            "cd /",
            f"rm -r {_WORK}",
        )

    def _checks(self) -> tuple[CheckCall, ...]:
        built = CheckCall(
            name="horovod-build",
            command=f"horovod_build.py {' '.join((*self.frameworks, ',', *self.operations))}",
            scripts=("horovod_build.py",),
            is_python=True,
        )
        return (built, *rank_checks(self.operations, has_torch="pytorch" in self.frameworks))


class NcclTests(Block, frozen=True, kw_only=True):
    """``block = "nccl-tests"``, which measures collectives.

    Needs a base with CUDA, NCCL, MPI and compilers, such as NGC's, or the steps ``openmpi`` and
    ``cuda`` before it.

    Attributes:
        source: of its repository.
        version: tag.
        commit: that the tag must be.
        mpi_home: where MPI is; Debian's is at ``/usr/lib/x86_64-linux-gnu/openmpi``.
    """

    source: str = "https://github.com/NVIDIA/nccl-tests.git"
    version: str
    commit: str | None = None
    mpi_home: str = "/usr/local/mpi"

    def __post_init__(self) -> None:
        if not self.source.startswith("https://"):
            raise ValueError(f"{self.source!r} is no https address")

    def output_on(self, ground: Ground) -> Step:
        """Return what the definition gets from this step where this can be relied on."""
        by_step = "cuda" in ground.holds
        cuda = "$CUDA_HOME CUDARTLIB=cudart_static" if by_step else _CUDA
        places = f"MPI_HOME={quote_word(self.mpi_home)} CUDA_HOME={cuda}"
        # Libraries of packages for Python are found by no other program.
        path = 'export NVCC_APPEND_FLAGS="-Xlinker -rpath -Xlinker $NCCL_HOME/lib"'
        variables = (f"    . {BUILD_VARIABLES}; {path}",) if by_step else ()
        listed = (
            (f"    list_gpu_code nccl-tests {_CLONE}/build/all_reduce_perf",) if by_step else ()
        )
        archive = f"nccl-tests-{self.version}.tar"
        earlier = f"{HOST_WHEELS}/{quote_word(archive)}"
        if by_step:  # without its list it is compiled again
            earlier += f" {HOST_WHEELS}/nccl-tests.gpu-code"
        # The certificates of the building machine, of which git asks under a name of its own.
        trusted = 'env ${SSL_CERT_FILE:+"GIT_SSL_CAINFO=$SSL_CERT_FILE"}'
        words = ("clone", "--depth", "1", "--branch", self.version, self.source)
        clone = f"{trusted} git {quote_words(words)}"
        checked = (
            (f'test "$(git -C {_CLONE} rev-parse HEAD)" = {quote_word(self.commit)}',)
            if self.commit
            else ()
        )
        return Step(
            name="nccl-tests",
            detail=self.version,
            build_packages=("git", "make", *(("g++", "libopenmpi-dev") if by_step else ())),
            build_lines=(
                f"mkdir -p {WHEELS} {_TESTS}",
                f"cp {earlier} {WHEELS}/ 2>/dev/null || {clone} {_CLONE}",
                f"if [ -d {_CLONE} ]; then",
                *(f"    {line}" for line in checked),
                *variables,
                f'    make -C {_CLONE} -j"$(nproc)" MPI=1 {places}',
                *listed,
                f"    tar -C {_CLONE}/build -cf {WHEELS}/{quote_word(archive)} .",
                f"    rm -r {_CLONE}",
                "fi",
            ),
            lines=(f"mkdir -p {_TESTS}", f"tar -C {_TESTS} -xf {WHEELS}/{quote_word(archive)}"),
            path=(_TESTS,),
            # Without a GPU it cannot run; that it is there and finds its libraries can be seen
            # anywhere.
            checks=(
                CheckCall(
                    name="nccl-tests",
                    command=f"sh nccl_tests.sh {_TESTS}/all_reduce_perf",
                    scripts=("nccl_tests.sh",),
                ),
            ),
        )
