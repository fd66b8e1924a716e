# tensorflow_25.02: NGC TensorFlow 25.02, NVIDIA's last, with Horovod
#
# Written by toolkit from recipes/tensorflow_25.02.toml. Change that file, then: toolkit image render tensorflow_25.02 --format docker --write
# It can be built without toolkit; BuildKit also skips what has not changed:
#
#     DOCKER_BUILDKIT=1 docker build -t tensorflow_25.02 -f tensorflow_25.02.Dockerfile .

ARG BASE=nvcr.io/nvidia/tensorflow:25.02-tf2-py3
FROM ${BASE} AS common

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
        '"""One of two ranks: sums vectors over both by the controller that is named, and compares with what must come out."""' \
        '' \
        'import sys' \
        'from importlib import import_module' \
        'from typing import Any' \
        '' \
        'hvd: Any = import_module("horovod.tensorflow")' \
        'tf: Any = import_module("tensorflow")' \
        '' \
        'hvd.init()' \
        'controller = "mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "no"' \
        'if controller != sys.argv[1]:' \
        '    sys.exit(f"Horovod'"'"'s controller is {controller}, not {sys.argv[1]}")' \
        'if hvd.size() != 2:' \
        '    sys.exit(f"{hvd.size()} ranks found each other, not 2")' \
        'ramp = tf.range(1000, dtype=tf.float32)' \
        'total = hvd.allreduce(ramp + hvd.rank(), op=hvd.Sum)' \
        'if not bool(tf.reduce_all(total == 2 * ramp + 1)):' \
        '    sys.exit("the sum over both ranks is wrong")' \
        'hvd.shutdown()' \
        'print(f"2 ranks by {controller}: the sum of their vectors is right")' \
        > /opt/toolkit/checks/two_ranks_tensorflow.py; \
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
        'check imports python3 imports.py horovod horovod.tensorflow' \
        'check horovod-build python3 horovod_build.py tensorflow , mpi gloo nccl' \
        'check ranks-mpi timeout 300 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 mpirun -n 2 --oversubscribe --bind-to none --mca btl self,vader --mca plm isolated python3 two_ranks_tensorflow.py mpi' \
        'check ranks-gloo timeout 300 horovodrun --disable-cache --gloo --network-interfaces lo -np 2 python3 two_ranks_tensorflow.py gloo' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PYTHONNOUSERSITE="1"
LABEL toolkit.recipe="tensorflow_25.02"
LABEL toolkit.recipe-hash="4d7fd7750cf5d3291559b5a8d3687fba9539e1f22e6ce88df08b46888ab066fd"
LABEL toolkit.version="0.1.0"
ENTRYPOINT []
CMD ["/bin/sh"]
