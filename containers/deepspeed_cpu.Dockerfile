# deepspeed_cpu: trainers_cpu with DeepSpeed and a compiler, for CPUs
#
# Written by toolkit from recipes/deepspeed_cpu.toml. Change that file, then: toolkit image render deepspeed_cpu --format docker --write
# It can be built without toolkit; BuildKit also skips what has not changed:
#
#     DOCKER_BUILDKIT=1 docker build -t deepspeed_cpu -f deepspeed_cpu.Dockerfile .

ARG BASE=debian:bookworm-slim
FROM ${BASE} AS common

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> apt: openmpi-bin, python3, python3-venv'; \
    # Nobody needs half an image after a power cut.
    if [ -d /etc/dpkg/dpkg.cfg.d ]; then echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/build; fi; \
    apt-get -qq update; \
    apt-get -qq -y install --no-install-recommends openmpi-bin python3 python3-venv; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/*

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> python: a virtual environment in /opt/venv'; \
    python3 -m venv /opt/venv

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> torch: torch 2.13.0+cpu, numpy 2.4.6'; \
    pip install --no-compile torch==2.13.0+cpu numpy==2.4.6 || pip install --no-compile --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu numpy==2.4.6

FROM common AS build

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> compilers: cmake, g++, libopenmpi-dev, make, python3-dev'; \
    apt-get -qq update; \
    apt-get -qq -y install --no-install-recommends cmake g++ libopenmpi-dev make python3-dev; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/*

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> horovod-build: 0.28.1 with MPI, Gloo'; \
    mkdir -p /opt/wheels; \
    mkdir -p /opt/wheels /opt/horovod-source; \
    # What was compiled before against the same things need not be compiled again.
    cp /mnt/wheels/horovod-0.28.1-*.whl /opt/wheels/ 2>/dev/null || true; \
    pip install --no-compile setuptools==84.2.1 wheel==0.48.0; \
    cd /opt/horovod-source; \
    pip download --no-deps --no-build-isolation --no-binary horovod horovod==0.28.1; \
    echo '92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0  horovod-0.28.1.tar.gz' | sha256sum -c -; \
    tar -xzf horovod-0.28.1.tar.gz --strip-components=1; \
    # torch's headers are C++17 since 2.1; this release of Horovod asks for C++14.
    if python3 -c "import sys, torch; sys.exit(tuple(map(int, torch.__version__.split('.')[:2])) < (2, 1))"; then sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' CMakeLists.txt horovod/torch/CMakeLists.txt; grep -q 'CMAKE_CXX_STANDARD 17' CMakeLists.txt; fi; \
    # Without debugging symbols it compiles faster, and they would be stripped anyway.
    sed -i s/RelWithDebInfo/Release/ setup.py; \
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1; \
    # CMake's is for a version of 4 or later, which else refuses the Gloo that Horovod carries; -s leaves the symbols out.
    export MAKEFLAGS="-j$(nproc)" CMAKE_POLICY_VERSION_MINIMUM=3.5 LDFLAGS=-s; \
    pip install --no-compile cffi==2.1.1 cloudpickle==3.1.2 packaging==26.3 psutil==7.2.2 pyyaml==6.0.3; \
    ls /opt/wheels/horovod-*.whl 2>/dev/null || pip wheel -v --no-deps --no-build-isolation -w /opt/wheels .; \
    cd /; \
    rm -r /opt/horovod-source

FROM common

RUN --mount=type=bind,from=build,source=/opt/wheels,target=/opt/wheels set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> horovod: 0.28.1 with MPI, Gloo'; \
    pip install --no-compile cffi==2.1.1 cloudpickle==3.1.2 packaging==26.3 psutil==7.2.2 pyyaml==6.0.3; \
    pip install --no-compile --no-deps --no-index /opt/wheels/horovod-*.whl

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> pip: scikit-learn 1.9.1, mpi4py 4.1.2, submitit 1.5.4'; \
    # What the image is verified for stays as it is.
    mkdir -p /opt/toolkit; \
    pip list --format=freeze | grep -iE '^(torch|numpy|horovod)==' > /opt/toolkit/constraints.txt || true; \
    export PIP_CONSTRAINT="/opt/toolkit/constraints.txt${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"; \
    pip install --no-compile scikit-learn==1.9.1 mpi4py==4.1.2 submitit==1.5.4 || { echo 'toolkit-conflict: scikit-learn==1.9.1, mpi4py==4.1.2, submitit==1.5.4'; pip install --dry-run scikit-learn mpi4py submitit | sed -n 's/^Would install /toolkit-fits: /p'; exit 1; }

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> lightning: lightning 2.6.6'; \
    # What the image is verified for stays as it is.
    mkdir -p /opt/toolkit; \
    pip list --format=freeze | grep -iE '^(torch|numpy|horovod|scikit[-_.]learn|mpi4py|submitit)==' > /opt/toolkit/constraints.txt || true; \
    export PIP_CONSTRAINT="/opt/toolkit/constraints.txt${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"; \
    pip install --no-compile lightning==2.6.6 || { echo 'toolkit-conflict: lightning==2.6.6'; pip install --dry-run lightning | sed -n 's/^Would install /toolkit-fits: /p'; exit 1; }

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> transformers: transformers 5.23.0, accelerate 1.15.0'; \
    # What the image is verified for stays as it is.
    mkdir -p /opt/toolkit; \
    pip list --format=freeze | grep -iE '^(torch|numpy|horovod|scikit[-_.]learn|mpi4py|submitit|lightning)==' > /opt/toolkit/constraints.txt || true; \
    export PIP_CONSTRAINT="/opt/toolkit/constraints.txt${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"; \
    pip install --no-compile transformers==5.23.0 accelerate==1.15.0 || { echo 'toolkit-conflict: transformers==5.23.0, accelerate==1.15.0'; pip install --dry-run transformers accelerate | sed -n 's/^Would install /toolkit-fits: /p'; exit 1; }

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> deepspeed-build: 2 commands'; \
    apt-get -qq update; \
    apt-get -qq -y install --no-install-recommends g++ python3-dev; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/*; \
    pip install --no-compile wheel==0.48.0 ninja==1.13.2; \
    DS_BUILD_SHM_COMM=1 pip install --no-compile --no-build-isolation deepspeed==0.19.8

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> deepspeed: deepspeed 0.19.8'; \
    # What the image is verified for stays as it is.
    mkdir -p /opt/toolkit; \
    pip list --format=freeze | grep -iE '^(torch|numpy|horovod|scikit[-_.]learn|mpi4py|submitit|lightning|transformers|accelerate)==' > /opt/toolkit/constraints.txt || true; \
    export PIP_CONSTRAINT="/opt/toolkit/constraints.txt${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"; \
    pip install --no-compile deepspeed==0.19.8 || { echo 'toolkit-conflict: deepspeed==0.19.8'; pip install --dry-run deepspeed | sed -n 's/^Would install /toolkit-fits: /p'; exit 1; }

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> clean: what only the build needed'; \
    python3 -m compileall -qq -j 0 -x '/tests?/' --invalidation-mode unchecked-hash /opt/venv/lib || true; \
    rm -f /etc/dpkg/dpkg.cfg.d/build; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/cache/debconf/*-old /var/lib/dpkg/*-old; \
    find /var/log -type f -delete; \
    echo '# The mirror of the build is not kept. Write: deb <your mirror> bookworm main' > /etc/apt/sources.list

# What proves the image stays in it: run it again at any time.
RUN set -ex; \
    mkdir -p /opt/toolkit/checks; \
    printf '%s\n' \
        '"""Horovod has what is named: `horovodrun --check-build` says so, and so does the metadata of the build, since the first can be wrong.' \
        'The frameworks are in the versions that it was built against.' \
        '' \
        'Arguments: frameworks as Horovod'"'"'s metadata calls them, then a comma, then operations: pytorch , mpi gloo' \
        '"""' \
        '' \
        'import json' \
        'import re' \
        'import subprocess' \
        'import sys' \
        'from importlib import import_module' \
        'from importlib.util import find_spec' \
        'from pathlib import Path' \
        '' \
        'MODULES = {"pytorch": "torch"}' \
        '' \
        'arguments = sys.argv[1:]' \
        'frameworks = arguments[: arguments.index(",")]' \
        'operations = arguments[arguments.index(",") + 1 :]' \
        '' \
        'said = subprocess.run(["horovodrun", "--check-build"], capture_output=True, text=True, check=True).stdout' \
        'print(said)' \
        'marked = {name.lower() for name in re.findall(r"\[X\] (\S+)", said)}' \
        'missing = [name for name in (*frameworks, *operations) if name not in marked]' \
        'if missing:' \
        '    sys.exit(f"horovodrun --check-build does not have {'"'"', '"'"'.join(missing)}")' \
        '' \
        'package = find_spec("horovod")' \
        'metadata = json.loads((Path(package.origin).parent / "metadata.json").read_text()) if package and package.origin else {}' \
        'missing = [name for name in frameworks if name not in metadata]' \
        'if missing:' \
        '    sys.exit(f"Horovod'"'"'s metadata does not have {'"'"', '"'"'.join(missing)}")' \
        'there = {name: str(getattr(import_module(MODULES.get(name, name)), "__version__", "")) for name in frameworks}' \
        'wrong = [f"{name} {metadata[name]}, and {there[name]} is in the image" for name in frameworks if there[name] != metadata[name]]' \
        'if wrong:' \
        '    sys.exit(f"Horovod was built for {'"'"'; for '"'"'.join(wrong)}")' \
        'print(f"built for {'"'"', '"'"'.join(f'"'"'{name} {metadata[name]}'"'"' for name in frameworks)}, with {'"'"', '"'"'.join(operations)}")' \
        > /opt/toolkit/checks/horovod_build.py; \
    printf '%s\n' \
        '"""Imports each module that is named, and those of the packages that are named after `--of`, and says their versions."""' \
        '' \
        'import importlib' \
        'import re' \
        'import sys' \
        '' \
        '# Directories that packages install beside their own module by mistake.' \
        'BESIDE = ("test", "tests", "docs", "doc", "examples", "example", "benchmarks", "scripts", "tools", "setup", "conftest")' \
        '' \
        '' \
        'def modules_of(package: str) -> "tuple[list[str], str]":' \
        '    """Return the modules of a package, that of its own name alone if there is one, and its version."""' \
        '    try:' \
        '        from importlib import metadata' \
        '    except ImportError:  # before Python 3.8' \
        '        return [], ""' \
        '    found = metadata.distribution(package)' \
        '    tops = {str(file).split("/")[0] for file in found.files or () if file.suffix in (".py", ".so")}' \
        '    known = {top.split(".")[0] for top in tops if "." not in top or top.endswith((".py", ".so"))}' \
        '    known |= set((found.read_text("top_level.txt") or "").split())' \
        '    names = sorted(name for name in known if name.isidentifier() and not name.startswith("_") and name not in BESIDE)' \
        '    same = [name for name in names if re.sub("[-_.]+", "-", name).lower() == re.sub("[-_.]+", "-", package).lower()]' \
        '    return same or names, found.version' \
        '' \
        '' \
        'split = sys.argv.index("--of") if "--of" in sys.argv else len(sys.argv)' \
        'wanted = dict.fromkeys(sys.argv[1:split], "")' \
        'for package in sys.argv[split + 1 :]:' \
        '    modules, number = modules_of(package)' \
        '    wanted.update({name: number for name in modules if name not in wanted})' \
        'versions = []' \
        'for name, number in wanted.items():' \
        '    try:' \
        '        module = importlib.import_module(name)' \
        '    except Exception as error:' \
        '        print(f"toolkit-unimportable: {name}")' \
        '        sys.exit(f"{name} cannot be imported: {type(error).__name__}: {str(error).strip()[:500]}")' \
        '    version = getattr(module, "__version__", None) or number' \
        '    if version:' \
        '        print(f"toolkit-fact: framework {name} {version}")' \
        '        versions.append(f"{name} {version}")' \
        'print(", ".join(versions))' \
        > /opt/toolkit/checks/imports.py; \
    printf '%s\n' \
        '#!/bin/sh' \
        '# What Open MPI says of itself: its version, and what Slurm can start it by (srun --mpi=...).' \
        'set -eu' \
        'said=$(ompi_info --parsable)' \
        'version=$(printf '"'"'%s\n'"'"' "$said" | sed -n '"'"'s/^ompi:version:full://p'"'"')' \
        spoken= \
        'case "$said" in *mca:pmix:ext* | *mca:pmix:pmix*) spoken="pmix" ;; esac' \
        'case "$said" in *mca:pmix:s2:*) spoken="$spoken pmi2" ;; esac' \
        'for one in $spoken; do' \
        '    echo "toolkit-fact: mpi $one"' \
        done \
        'test -n "$spoken" || { echo "Open MPI $version speaks neither PMIx nor PMI-2: Slurm cannot start it"; exit 1; }' \
        'echo "Open MPI $version speaks ${spoken# }"' \
        > /opt/toolkit/checks/openmpi.sh; \
    printf '%s\n' \
        '"""One of two ranks: sums vectors over both by the controller that is named, and compares with what must come out."""' \
        '' \
        'import sys' \
        'from importlib import import_module' \
        'from typing import Any' \
        '' \
        'hvd: Any = import_module("horovod.torch")' \
        'torch: Any = import_module("torch")' \
        '' \
        'hvd.init()' \
        'controller = "mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "no"' \
        'if controller != sys.argv[1]:' \
        '    sys.exit(f"Horovod'"'"'s controller is {controller}, not {sys.argv[1]}")' \
        'if hvd.size() != 2:' \
        '    sys.exit(f"{hvd.size()} ranks found each other, not 2")' \
        'ramp = torch.arange(1000.0)' \
        'total = hvd.allreduce(ramp + hvd.rank(), op=hvd.Sum)' \
        'if not torch.equal(total, 2 * ramp + 1):' \
        '    sys.exit("the sum over both ranks is wrong")' \
        'hvd.shutdown()' \
        'print(f"2 ranks by {controller}: the sum of their vectors is right")' \
        > /opt/toolkit/checks/two_ranks.py; \
    printf '%s\n' \
        '"""Packages in a user'"'"'s home must not hide the image'"'"'s: a module planted there is not found."""' \
        '' \
        'import os' \
        'import subprocess' \
        'import sys' \
        'import tempfile' \
        'from pathlib import Path' \
        '' \
        'with tempfile.TemporaryDirectory() as home:' \
        '    environment = {**os.environ, "HOME": home, "PYTHONUSERBASE": f"{home}/base"}' \
        '    ask = [sys.executable, "-c", "import site; print(site.getusersitepackages())"]' \
        '    where = Path(subprocess.run(ask, env=environment, capture_output=True, text=True, check=True).stdout.strip())' \
        '    if not where.is_relative_to(home):' \
        '        sys.exit(f"the user'"'"'s site packages are in {where}, where nobody looked for them")' \
        '    where.mkdir(parents=True)' \
        '    (where / "planted.py").touch()' \
        '    found = subprocess.run([sys.executable, "-c", "import planted"], env=environment, capture_output=True)' \
        'if found.returncode == 0:' \
        '    sys.exit("a module in the user'"'"'s site packages was imported")' \
        'print("a module in the user'"'"'s site packages is not imported")' \
        > /opt/toolkit/checks/user_site.py; \
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
        'check imports python3 imports.py torch numpy horovod horovod.torch sklearn mpi4py submitit lightning torchmetrics transformers accelerate deepspeed' \
        'check openmpi sh openmpi.sh' \
        'check user-site python3 user_site.py' \
        'check horovod-build python3 horovod_build.py pytorch , mpi gloo' \
        'check ranks-mpi timeout 300 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 mpirun -n 2 --oversubscribe --bind-to none --mca btl self,vader --mca plm isolated python3 two_ranks.py mpi' \
        'check ranks-gloo timeout 300 horovodrun --disable-cache --gloo --network-interfaces lo -np 2 python3 two_ranks.py gloo' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PATH="/opt/venv/bin:$PATH"
ENV PYTHONNOUSERSITE="1"
LABEL toolkit.recipe="deepspeed_cpu"
LABEL toolkit.recipe-hash="0fcf659dba367cf83ec2f9d63065e3e5999d093282dbfdfc26eecea3543fe81c"
LABEL toolkit.version="0.1.0"
ENTRYPOINT []
CMD ["/bin/sh"]
