"""Blocks that compile code for GPUs without a base of NVIDIA: CUDA's compiler, and wheels.

The compiler is in the build stage only. What it made is listed by architecture, and the list is
part of the image, whose checks record it in the manifest.
"""

from __future__ import annotations

import re
from typing import Literal

from toolkit.images.recipe.block import (
    INSTALL,
    REQUIREMENT,
    VARIABLE,
    WHEELS,
    Block,
    CheckCall,
    Ground,
    Step,
    require_all,
    require_step_names,
)
from toolkit.images.recipe.protection import parse_names
from toolkit.images.recipe.quoting import quote_word, quote_words

BUILD_VARIABLES = "/opt/cuda-build.sh"  # read by what compiles for GPUs
_LISTS = "/opt/toolkit/gpu-code"  # where an image has its lists of what was compiled
_DUMP = "nvidia-cuda-cuobjdump==13.5.37"  # it reads what any earlier compiler made
_ARCHITECTURE = re.compile(r"[1-9]\d?\.\d\Z")
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?\Z")
# Libraries under the names that are linked with, which wheels leave out.
_LINKS = 'for file in "$nvidia"/*/lib/lib*.so.*; do ln -sf "${file##*/}" "${file%%.so.*}.so"; done'


class Cuda(Block, frozen=True, kw_only=True):
    """``block = "cuda"``: CUDA's compiler, for later steps that compile. Needs a framework.

    NCCL and the headers of CUDA's libraries are those that the framework's packages brought.

    Attributes:
        source: ``pip``: NVIDIA's packages of the package index, which has compilers from CUDA 13
            on. ``debian``: the package ``nvidia-cuda-toolkit`` of the base's release (non-free).
        version: of the compiler: ``13.0.3``.
        architectures: of the GPUs that code is compiled for, by compute capability: ``8.0``. Those
            newer than the last one compile its intermediate code when a program starts.
    """

    source: Literal["pip", "debian"] = "pip"
    version: str
    architectures: tuple[str, ...]

    def __post_init__(self) -> None:
        require_all(self.architectures, _ARCHITECTURE, "compute capability, such as 8.0")
        require_all((self.version,), _VERSION, "version of CUDA, such as 13.0.3")
        if list(self.architectures) != sorted(self.architectures, key=float) or not (
            self.architectures
        ):
            raise ValueError("architectures are needed, the oldest first")

    def is_held(self, kind: str, holds: frozenset[str]) -> bool:
        """Return whether the base has a compiler of CUDA, as NVIDIA's have."""
        del kind
        return "nccl" in holds

    def output(self) -> Step:
        """Return what the definition gets from this step."""
        names = [architecture.replace(".", "") for architecture in self.architectures]
        return Step(
            name="cuda",
            detail=f"compiler {self.version} for {', '.join(f'sm_{name}' for name in names)}",
            build_packages=("g++",) if self.source == "pip" else (),
            build_lines=(*self._compiler(), *self._variables(names)),
            cuda=self.version,
            gpu_code=tuple(f"sm_{name}" for name in names),
            lines=(f"mkdir -p {_LISTS}", f"cp {WHEELS}/*.gpu-code {_LISTS}/"),
            checks=(
                CheckCall(
                    name="gpu-code",
                    command=f"gpu_code.py {quote_words(f'sm_{name}' for name in names)}",
                    scripts=("gpu_code.py",),
                    is_python=True,
                ),
            ),
        )

    def _compiler(self) -> tuple[str, ...]:
        nvidia = (
            "nvidia=$(python3 -c \"import sysconfig; print(sysconfig.get_path('purelib'))\")/nvidia"
        )
        if self.source == "pip":
            toolkit = f"cuda-toolkit[cccl,cudart,nvcc,nvml]=={self.version}.*"
            major = self.version.partition(".")[0]
            return (
                f"pip install --no-compile {quote_words((toolkit, _DUMP))}",
                nvidia,
                f'cuda="$nvidia/cu{major}"',
                'ln -sfn lib "$cuda/lib64"',
                _LINKS,
            )
        return (
            "sed -i 's/ main$/ main contrib non-free/' /etc/apt/sources.list",
            "apt-get -qq update",
            f"{INSTALL} g++-13 " + quote_word(f"nvidia-cuda-toolkit={self.version}*"),
            nvidia,
            "cuda=/usr",
            _LINKS,
        )

    def _variables(self, names: list[str]) -> tuple[str, ...]:
        """Return the lines that write what later steps of the build stage read."""
        codes = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in names]
        codes.append(f"-gencode=arch=compute_{names[-1]},code=compute_{names[-1]}")
        variables = {
            "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(names),
            "TORCH_CUDA_ARCH_LIST": f"{';'.join(self.architectures)}+PTX",
            "NVCC_GENCODE": " ".join(codes),
        }
        if self.source == "debian":
            variables |= {"CC": "gcc-13", "CXX": "g++-13", "CUDAHOSTCXX": "g++-13"}
            variables |= {"NVCC_PREPEND_FLAGS": "-ccbin g++-13"}
            # Headers that older compilers read unasked.
            variables |= {"CXXFLAGS": "-include string -include stdexcept -include cstdint"}
        exports = [f"export {name}={quote_word(value)}" for name, value in variables.items()]
        list_code = (
            "list_gpu_code() { for file in $2; do "
            'cuobjdump --list-elf "$file" || true; cuobjdump --list-ptx "$file" || true; done | '
            "sed -n 's/.*[.]\\(sm_[0-9a-z]*\\)[.]cubin$/\\1/p; "
            "s/.*[.]sm_\\([0-9a-z]*\\)[.]ptx$/compute_\\1/p' | "
            f'sort -uV > {WHEELS}/"$1".gpu-code; }}'
        )
        paths = (
            'echo "export CUDA_HOME=$cuda CUDAToolkit_ROOT=$cuda HOROVOD_CUDA_HOME=$cuda '
            "HOROVOD_NCCL_HOME=$nvidia/nccl HOROVOD_NCCL_LINK=SHARED NCCL_HOME=$nvidia/nccl "
            'LIBRARY_PATH=$cuda/lib64:$nvidia/nccl/lib PATH=$cuda/bin:\\$PATH"'
        )
        # Not by echo, to which a shell may give backslashes a meaning.
        echoes = (f"printf '%s\\n' {quote_word(line)}" for line in (*exports, list_code))
        return (f"{{ {'; '.join((paths, *echoes))}; }} > {BUILD_VARIABLES}",)


class Wheel(Block, frozen=True, kw_only=True):
    """``block = "wheel"``: packages that are compiled in the build stage.

    The compilers, and CUDA's of the step ``cuda``, stay out of the image.

    Attributes:
        packages: exact versions, whose sources pip fetches, or addresses of sources.
        name: of the step.
        build_packages: Debian packages that compiling needs, beside a compiler.
        requires: requirements of pip that compiling needs.
        variables: that compiling needs: ``DS_BUILD_FUSED_ADAM = "1"``.
        imports: modules that a script can import afterwards; left out: those of the packages.
    """

    packages: tuple[str, ...]
    name: str
    build_packages: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    imports: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require_all((*self.packages, *self.requires), REQUIREMENT, "requirement of pip")
        require_all(self.variables, VARIABLE, "name of a variable")
        require_step_names(self.name)

    def output_on(self, ground: Ground) -> Step:
        """Return what the definition gets from this step where this can be relied on."""
        packages = " ".join(self.build_packages) if "compilers" in ground.holds else ""
        place = f"/opt/{self.name}-wheels"
        exports = [f"export {name}={quote_word(text)}" for name, text in self.variables.items()]
        return Step(
            name=self.name,
            detail=", ".join(self.packages).replace("==", " "),
            build_packages=("g++", "make", "python3-dev", *self.build_packages),
            build_lines=(
                *((f"apt-get -qq update; {INSTALL} {packages}",) if packages else ()),
                f"mkdir -p {WHEELS}",
                f"if [ -f {BUILD_VARIABLES} ]; then . {BUILD_VARIABLES}; fi",
                *exports,
                *(
                    (f"pip install --no-compile {quote_words(self.requires)}",)
                    * bool(self.requires)
                ),
                f"pip wheel -v --no-binary :all: --no-deps --no-build-isolation -w {place} "
                f"{quote_words(self.packages)}",
                f"for file in {place}/*.whl; do "
                f'python3 -m zipfile -e "$file" {place}/unpacked; done',
                f"if [ -f {BUILD_VARIABLES} ]; then "
                f"list_gpu_code {self.name} \"$(find {place}/unpacked -name '*.so')\"; fi",
                f"cp {place}/*.whl {WHEELS}/",
                f"cd {place}; ls *.whl | sed 's|^|{WHEELS}/|' > {WHEELS}/{self.name}.wheels",
                "cd /",
                f"rm -r {place}",
            ),
            lines=(f"pip install --no-compile $(cat {WHEELS}/{self.name}.wheels)",),
            imports=self.imports or (),
            installed=parse_names(self.packages) if self.imports is None else (),
            brings=parse_names(self.packages),
            requirements=self.packages,
        )
