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
    # What the image is verified for stays as it is.
    mkdir -p /opt/toolkit; \
    pip list --format=freeze | grep -iE '^(torch|torchvision|torchaudio|torchtext|apex|transformer[-_.]engine|flash[-_.]attn|torch[-_.]tensorrt|tensorflow|tensorflow[-_.]cpu|tensorflow[-_.]gpu|tf[-_.]keras|jax|jaxlib|mxnet|cupy|horovod|ray|mpi4py|numpy)==' > /opt/toolkit/constraints.txt || true; \
    export PIP_CONSTRAINT="/opt/toolkit/constraints.txt${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"; \
    pip install --no-compile 'ray[default,train,tune]==2.60.0' || { echo 'toolkit-conflict: ray[default,train,tune]==2.60.0'; pip install --dry-run ray | sed -n 's/^Would install /toolkit-fits: /p'; exit 1; }

FROM common

# What proves the image stays in it: run it again at any time.
RUN set -ex; \
    mkdir -p /opt/toolkit/checks; \
    printf '%s\n' \
        '"""Run checks of Python in forks of one process, which imports their modules once.' \
        '' \
        'Arguments: the modules, then each check as one word for a shell: its name, its script and the script'"'"'s arguments.' \
        '"""' \
        '' \
        'import importlib' \
        'import multiprocessing' \
        'import os' \
        'import runpy' \
        'import shlex' \
        'import signal' \
        'import sys' \
        'import tempfile' \
        '' \
        'PATIENCE = 300  # seconds for one check' \
        '' \
        '' \
        'def run(output: int, *words: str) -> None:' \
        '    """Run a script with its arguments, as this process."""' \
        '    signal.alarm(PATIENCE)' \
        '    os.dup2(output, 1)' \
        '    os.dup2(output, 2)' \
        '    sys.stdout = os.fdopen(1, "w", 1, closefd=False)  # so that the last line is what was printed last' \
        '    sys.argv = list(words)' \
        '    runpy.run_path(words[0], run_name="__main__")' \
        '' \
        '' \
        'def check(name: str, *words: str) -> bool:' \
        '    """Run a check in a fork and print its result; return whether it passed."""' \
        '    with tempfile.TemporaryFile() as output:' \
        '        process = multiprocessing.get_context("fork").Process(target=run, args=(output.fileno(), *words))' \
        '        process.start()' \
        '        process.join()' \
        '        output.seek(0)' \
        '        text = output.read().decode(errors="replace").strip()' \
        '    code = process.exitcode or 0' \
        '    if code < 0:' \
        '        text = f"{text}\n{words[0]} was ended by signal {-code}".strip()' \
        '    print(text)' \
        '    print(f"toolkit-check: {name} {'"'"'failed'"'"' if code else '"'"'passed'"'"'}: {(text.splitlines() or ['"'"''"'"'])[-1]}", flush=True)' \
        '    return code == 0' \
        '' \
        '' \
        'if __name__ == "__main__":' \
        '    for module in sys.argv[1].split():' \
        '        try:' \
        '            importlib.import_module(module)' \
        '        except BaseException:  # also SystemExit; the check that needs it says so' \
        '            continue' \
        '    results = [check(*shlex.split(call)) for call in sys.argv[2:]]' \
        '    sys.exit(not all(results))' \
        > /opt/toolkit/checks/forked.py; \
    printf '%s\n' \
        '"""Import each module that is named, and those of the packages that are named after `--of`, and print their versions."""' \
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
        'wrong = []' \
        'for name, number in wanted.items():' \
        '    try:' \
        '        module = importlib.import_module(name)' \
        '    except BaseException as error:  # also SystemExit: a module that ends the program is unusable' \
        '        print(f"toolkit-unimportable: {name}")' \
        '        wrong.append(f"{name} cannot be imported: {type(error).__name__}: {str(error).strip()[:500]}")' \
        '        continue' \
        '    version = getattr(module, "__version__", None) or number' \
        '    if version:' \
        '        print(f"toolkit-fact: framework {name} {version}")' \
        '        versions.append(f"{name} {version}")' \
        'if wrong:' \
        '    sys.exit("; ".join(" ".join(fault.split()) for fault in wrong))' \
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
        'python3 forked.py '"'"'ray ray.train ray.tune'"'"' '"'"'imports imports.py ray ray.train ray.tune'"'"' </dev/null & forked=$!  # beside the others' \
        'wait "$forked" || status=1' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PYTHONNOUSERSITE="1"
LABEL toolkit.recipe="ray"
LABEL toolkit.recipe-hash="ddee478b7d65e19a8a5b4220fc7f32c30dfe305add21de5f2aec45df3ce76eb9"
LABEL toolkit.version="0.1.0"
ENTRYPOINT []
CMD ["/bin/sh"]
