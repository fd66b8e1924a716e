# ray: Ray with Train and Tune on NGC PyTorch 25.06
#
# Written by toolkit from recipes/ray.toml. Change that file, then: toolkit image render ray --format docker --write
# It can be built without toolkit; BuildKit also skips what has not changed:
#
#     DOCKER_BUILDKIT=1 docker build -t ray -f ray.Dockerfile .

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
    echo '==> ray: ray[default,train,tune] 2.60.0'; \
    pip install --no-compile 'ray[default,train,tune]==2.60.0'

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
    echo '==> clean: what only the build needed'

# What proves the image stays in it: run it again at any time.
RUN set -ex; \
    mkdir -p /opt/toolkit/checks; \
    printf '%s\n' \
        '"""Imports each module that is named, and says its version."""' \
        '' \
        'import importlib' \
        'import sys' \
        '' \
        'versions = []' \
        'for name in sys.argv[1:]:' \
        '    module = importlib.import_module(name)' \
        '    version = getattr(module, "__version__", None)' \
        '    if version:' \
        '        print(f"toolkit-fact: framework {name} {version}")' \
        '        versions.append(f"{name} {version}")' \
        'print(", ".join(versions))' \
        > /opt/toolkit/checks/imports.py; \
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
        'check imports python3 imports.py ray ray.train ray.tune' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PYTHONNOUSERSITE="1"
LABEL toolkit.recipe="ray"
LABEL toolkit.recipe-hash="c4667a1967a1e73bc4ae7f14a22e3fa40e697ad95c9b78b3d03fb00c48eb20b7"
LABEL toolkit.version="0.1.0"
ENTRYPOINT []
CMD ["/bin/sh"]
