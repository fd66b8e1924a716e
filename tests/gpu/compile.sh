#!/bin/bash
# Compile what is in a pack for this machine's GPU and PyTorch, as the images' recipes do: compile.sh horovod|nccl-tests PYTHON SOURCE DIRECTORY
# The result is DIRECTORY/venv, an environment with Horovod over PYTHON's own, or DIRECTORY/all_reduce_perf. A second call waits for the first one, and does nothing.
set -euo pipefail
what=$1 python=$2 source=$(realpath "$3") place=$(realpath -m "$4")
mkdir -p "$place/work" "$place/nccl/lib"
exec 9>"$place/lock"
flock 9
! [ -e "$place/venv" ] && ! [ -e "$place/all_reduce_perf" ] || exit 0

# PyTorch's own NCCL, also under the name that is linked with.
own=$("$python" -c 'import importlib.util as u; print(list(u.find_spec("nvidia").submodule_search_locations)[0])')/nccl
nccl=$place/nccl
ln -sfn "$own/include" "$nccl/include"
ln -sf "$own/lib/libnccl.so.2" "$nccl/lib/libnccl.so"
ln -sf "$own/lib/libnccl.so.2" "$nccl/lib/libnccl.so.2"
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(dirname "$(realpath "$nvcc")")")
code=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
jobs=-j$(nproc)
PATH=$cuda/bin:$(dirname "$(command -v "$python")"):$PATH  # its cmake, where it has one

cd "$place/work"
tar -xzf "$source" --strip-components=1
if [ "$what" = nccl-tests ]; then
    make -C src "$jobs" CUDA_HOME="$cuda" NCCL_HOME="$nccl" NVCC_GENCODE="-gencode=arch=compute_$code,code=sm_$code" BUILDDIR="$place" "$place/all_reduce_perf" >"$place/log" 2>&1 ||
        { tail -n 40 "$place/log" >&2; exit 1; }
    exit 0
fi
sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' CMakeLists.txt horovod/torch/CMakeLists.txt
sed -i 's/CMAKE_CUDA_STANDARD 11/CMAKE_CUDA_STANDARD 17/' horovod/common/ops/cuda/CMakeLists.txt
sed -i s/RelWithDebInfo/Release/ setup.py
export CUDA_HOME=$cuda CUDAToolkit_ROOT=$cuda HOROVOD_CUDA_HOME=$cuda HOROVOD_NCCL_HOME=$nccl HOROVOD_NCCL_LINK=SHARED
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_BUILD_CUDA_CC_LIST=$code TORCH_CUDA_ARCH_LIST=${code:0:-1}.${code: -1}
export MAKEFLAGS=$jobs CMAKE_POLICY_VERSION_MINIMUM=3.5 LDFLAGS=-s CXXFLAGS="-include stdexcept"  # which gcc 13 and later need
"$python" -m pip wheel -v --no-deps --no-build-isolation --no-index -w "$place/wheels" . >"$place/log" 2>&1 || { tail -n 40 "$place/log" >&2; exit 1; }
"$python" -m venv --without-pip "$place/made"
packages=$(echo "$place"/made/lib/python3.*/site-packages)
"$python" -m zipfile -e "$place"/wheels/horovod-*.whl "$packages"
"$python" -c 'import site, sys; print(*site.getsitepackages(), *filter(None, sys.argv[1].split(":")), sep="\n")' "${PYTHONPATH:-}" >"$packages/others.pth"
mv "$place/made" "$place/venv"
