#!/bin/bash
# Run what only a GPU shows, on a machine without a network: make test-gpu, or tests/gpu/run.sh [ARGUMENTS of pytest].
#
#   PYTHON     the Python that has torch (default: python3)
#   GPU_PACK   what `make gpu-pack` wrote (default: build/gpu-pack)
#
# Slurm and Apptainer of the pack lie over /usr, /etc and /var/lib in a mount namespace of these tests: the machine is not changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
pack=$(realpath -m "${GPU_PACK:-build/gpu-pack}")
python=$(command -v "${PYTHON:-python3}") || { echo "test-gpu: there is no ${PYTHON:-python3}; PYTHON=/path/to/python3 names the one that has torch" >&2; exit 72; }
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# Lay a writable copy over directory $1, with what is mounted below it.
cover() {
    local below under=$layers$1
    mapfile -t below < <(awk -v within="$1/" 'index($5, within) == 1 { print $5 }' /proc/self/mountinfo)
    mkdir -p "$under/kept" "$under/new" "$under/work"
    mount --rbind "$1" "$under/kept"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=$under/new,workdir=$under/work" "$1"
    for place in "${below[@]}"; do
        mount --rbind "$under/kept${place#"$1"}" "$place"
    done
}

if [ "${1:-}" = --within ] || [ "${1:-}" = --try ]; then
    layers=$(mktemp -d)
    mount -t tmpfs tmpfs "$layers"
    cover /usr
    cover /etc
    cover /var/lib
    [ "$1" = --within ] || exit 0
    shift
    PYTHONPATH=$PWD "$python" -c 'import sys, pathlib; from tests.gpu import pack; print("test-gpu:", pack.unpack(pathlib.Path(sys.argv[1])), "files of packages are laid over /usr, /etc and /var/lib, for these tests only")' "$pack/packages.tar.xz"
    ldconfig
elif ! command -v slurmctld >/dev/null && [ -e "$pack/packages.tar.xz" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "test-gpu: only root can lay Slurm of the pack over /usr: what needs Slurm is not run" >&2
    elif ! unshare --mount --propagation private "$0" --try; then
        echo "test-gpu: this kernel lays nothing over /usr: what needs Slurm is not run" >&2
    else
        exec unshare --mount --propagation private "$0" --within "$@"
    fi
fi

if ! PYTHONPATH=$pack/site-$version "$python" -c 'import msgspec, click, jinja2, pytest' 2>/dev/null; then
    echo "test-gpu: $python ($version) lacks packages of the toolkit or pytest" >&2
    echo "          where there is a network: make gpu-pack PYTHON_VERSION=$version; then bring build/gpu-pack here" >&2
    exit 72
fi
# Jobs without a container take the Python that is first on PATH, or the virtual environment that is active.
PATH=$(dirname "$python"):$PATH
if [ -e "$(dirname "$python")/../pyvenv.cfg" ]; then
    VIRTUAL_ENV=$(realpath "$(dirname "$python")/..")
    export VIRTUAL_ENV
fi
export GPU_PACK=$pack PYTHONPATH=$PWD:$pack/site-$version PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest -c tests/gpu/pytest.ini --rootdir . --confcutdir tests/gpu -p no:cacheprovider -v "$@"
