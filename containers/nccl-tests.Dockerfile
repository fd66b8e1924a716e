# nccl-tests: NVIDIA's nccl-tests with MPI on NGC PyTorch 25.06
#
# Written by toolkit from recipes/nccl-tests.toml. Change that file, then: toolkit image render nccl-tests --format docker --write
# It can be built without toolkit; BuildKit also skips what has not changed:
#
#     DOCKER_BUILDKIT=1 docker build -t nccl-tests -f nccl-tests.Dockerfile .

ARG BASE=nvcr.io/nvidia/pytorch:25.06-py3
FROM ${BASE} AS common

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    for file in /.singularity.d/env/10-docker*.sh; do if [ -f "$file" ]; then . "$file"; fi; done; \
    if [ -f /etc/pip/constraint.txt ]; then export PIP_CONSTRAINT=/etc/pip/constraint.txt; fi; \
    export PATH=/opt/nccl-tests:$PATH; \
    echo '==> nccl-tests: v2.13.6'; \
    mkdir -p /opt/wheels /opt/nccl-tests; \
    cp /mnt/wheels/nccl-tests-v2.13.6.tar /opt/wheels/ 2>/dev/null || env ${SSL_CERT_FILE:+"GIT_SSL_CAINFO=$SSL_CERT_FILE"} git clone --depth 1 --branch v2.13.6 https://github.com/NVIDIA/nccl-tests.git /opt/nccl-tests-source; \
    if [ -d /opt/nccl-tests-source ]; then \
        make -C /opt/nccl-tests-source -j"$(nproc)" MPI=1 MPI_HOME=/usr/local/mpi CUDA_HOME=/usr/local/cuda; \
        tar -C /opt/nccl-tests-source/build -cf /opt/wheels/nccl-tests-v2.13.6.tar .; \
        rm -r /opt/nccl-tests-source; \
    fi; \
    mkdir -p /opt/nccl-tests; \
    tar -C /opt/nccl-tests -xf /opt/wheels/nccl-tests-v2.13.6.tar; \
    rm -rf /opt/wheels

FROM common

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    for file in /.singularity.d/env/10-docker*.sh; do if [ -f "$file" ]; then . "$file"; fi; done; \
    if [ -f /etc/pip/constraint.txt ]; then export PIP_CONSTRAINT=/etc/pip/constraint.txt; fi; \
    export PATH=/opt/nccl-tests:$PATH; \
    echo '==> clean: what only the build needed'; \
    rm -f /etc/dpkg/dpkg.cfg.d/build; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/cache/debconf/*-old /var/lib/dpkg/*-old; \
    find /var/log -type f -delete

# What proves the image stays in it: run it again at any time.
RUN set -ex; \
    mkdir -p /opt/toolkit/checks; \
    printf '%s\n' \
        '#!/bin/sh' \
        '# A program of nccl-tests is there and finds its libraries; libcuda belongs to the driver, which only a node with a GPU has.' \
        'set -eu' \
        'missing=$(ldd "$1" | grep '"'"'not found'"'"' | grep -v libcuda.so || true)' \
        'test -z "$missing" || { echo "it does not find its libraries: $missing"; exit 1; }' \
        'echo "${1##*/} finds its libraries"' \
        > /opt/toolkit/checks/nccl_tests.sh; \
    printf '%s\n' \
        '#!/bin/sh' \
        '# Proves this image: runs every check and says of each, in one line, how it came out. Ends with 1 if one failed.' \
        'cd /opt/toolkit/checks || exit 1' \
        'export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1' \
        'newline='"'"'' \
        ''"'"'' \
        status=0 \
        'check() {' \
        '    name=$1' \
        '    shift' \
        '    if output=$("$@" </dev/null 2>&1); then outcome=passed; else outcome=failed; status=1; fi' \
        '    printf '"'"'%s\n'"'"' "$output"' \
        '    printf '"'"'toolkit-check: %s %s: %s\n'"'"' "$name" "$outcome" "${output##*"$newline"}"' \
        '}' \
        'check nccl-tests sh nccl_tests.sh /opt/nccl-tests/all_reduce_perf' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PATH="/opt/nccl-tests:$PATH"
LABEL toolkit.recipe="nccl-tests"
LABEL toolkit.recipe-hash="bc0843c34d4fdc381031beebb69448657a46a1ca2410114cfb41a2ca475e178d"
LABEL toolkit.version="0.1.0"
ENTRYPOINT []
CMD ["/bin/sh"]
