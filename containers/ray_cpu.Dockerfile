# ray_cpu: Ray with Train and Tune, and PyTorch, for CPUs, on Debian bookworm
#
# Written by toolkit from recipes/ray_cpu.toml. Change that file, then: toolkit image render ray_cpu --format docker --write
# It can be built without toolkit; BuildKit also skips what has not changed:
#
#     DOCKER_BUILDKIT=1 docker build -t ray_cpu -f ray_cpu.Dockerfile .

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
    echo '==> apt: python3, python3-venv'; \
    # Nobody needs half an image after a power cut.
    if [ -d /etc/dpkg/dpkg.cfg.d ]; then echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/build; fi; \
    apt-get -qq update; \
    apt-get -qq -y install --no-install-recommends python3 python3-venv; \
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

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> ray: ray[default,train,tune] 2.60.0'; \
    # What the image is verified for stays as it is.
    mkdir -p /opt/toolkit; \
    pip list --format=freeze | grep -iE '^(torch|numpy)==' > /opt/toolkit/constraints.txt || true; \
    export PIP_CONSTRAINT="/opt/toolkit/constraints.txt${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"; \
    pip install --no-compile 'ray[default,train,tune]==2.60.0' || { echo 'toolkit-conflict: ray[default,train,tune]==2.60.0'; pip install --dry-run ray | sed -n 's/^Would install /toolkit-fits: /p'; exit 1; }

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> pip: scikit-learn 1.9.1'; \
    # What the image is verified for stays as it is.
    mkdir -p /opt/toolkit; \
    pip list --format=freeze | grep -iE '^(torch|numpy|ray)==' > /opt/toolkit/constraints.txt || true; \
    export PIP_CONSTRAINT="/opt/toolkit/constraints.txt${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"; \
    pip install --no-compile scikit-learn==1.9.1 || { echo 'toolkit-conflict: scikit-learn==1.9.1'; pip install --dry-run scikit-learn | sed -n 's/^Would install /toolkit-fits: /p'; exit 1; }

FROM common

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
        '"""Runs checks of Python in forks of one process, which imports their modules once.' \
        '' \
        'Arguments: the modules, then each check as one word for a shell: its name, its script and the script'"'"'s arguments.' \
        '"""' \
        '' \
        'import importlib' \
        'import os' \
        'import runpy' \
        'import shlex' \
        'import signal' \
        'import sys' \
        'import tempfile' \
        'import traceback' \
        '' \
        'PATIENCE = 300  # seconds for one check' \
        '' \
        '' \
        'def run(program: str, *arguments: str) -> int:' \
        '    """Run a program of Python in this process; return its exit code."""' \
        '    sys.argv = [program, *arguments]' \
        '    code = 0' \
        '    try:' \
        '        runpy.run_path(program, run_name="__main__")' \
        '    except SystemExit as error:' \
        '        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1' \
        '        if isinstance(error.code, str):' \
        '            print(error.code, file=sys.stderr)' \
        '    except BaseException:' \
        '        traceback.print_exc()' \
        '        code = 1' \
        '    sys.stdout.flush()' \
        '    sys.stderr.flush()' \
        '    return code' \
        '' \
        '' \
        'def run_forked(program: str, *arguments: str) -> "tuple[int, str]":' \
        '    """Run a program of Python in a fork of this process; return its exit code and what it printed."""' \
        '    sys.stdout.flush()' \
        '    with tempfile.TemporaryFile() as output:' \
        '        child = os.fork()' \
        '        if child == 0:' \
        '            os.dup2(output.fileno(), 1)' \
        '            os.dup2(output.fileno(), 2)' \
        '            signal.alarm(PATIENCE)' \
        '            os._exit(run(program, *arguments))' \
        '        status = os.waitpid(child, 0)[1]' \
        '        output.seek(0)' \
        '        text = output.read().decode(errors="replace").strip()' \
        '    if os.WIFSIGNALED(status):' \
        '        return 1, f"{text}\n{program} was ended by signal {os.WTERMSIG(status)}".strip()' \
        '    return os.WEXITSTATUS(status), text' \
        '' \
        '' \
        'def main(modules: str, *calls: str) -> int:' \
        '    """Run the checks; return 1 if one failed."""' \
        '    for module in modules.split():' \
        '        try:' \
        '            importlib.import_module(module)' \
        '        except BaseException:  # also SystemExit; the check that needs it says so' \
        '            continue' \
        '    failed = False' \
        '    for call in calls:' \
        '        name, *words = shlex.split(call)' \
        '        code, text = run_forked(*words)' \
        '        failed = failed or code != 0' \
        '        print(text)' \
        '        print(f"toolkit-check: {name} {'"'"'failed'"'"' if code else '"'"'passed'"'"'}: {(text.splitlines() or ['"'"''"'"'])[-1]}", flush=True)' \
        '    return int(failed)' \
        '' \
        '' \
        'if __name__ == "__main__":' \
        '    sys.exit(main(*sys.argv[1:]))' \
        > /opt/toolkit/checks/forked.py; \
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
        '"""Packages in a user'"'"'s home must not hide the image'"'"'s: a module planted there is not found.' \
        '' \
        'With `--foreign`, as for images of others, it is enough that it is not found where PYTHONNOUSERSITE is set, as in every job.' \
        '"""' \
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
        '    if not str(where).startswith(home):' \
        '        sys.exit(f"the user'"'"'s site packages are in {where}, where nobody looked for them")' \
        '    where.mkdir(parents=True)' \
        '    (where / "planted.py").touch()' \
        '    settings = [{}, {"PYTHONNOUSERSITE": "1"}] if "--foreign" in sys.argv else [{}]' \
        '    found = [' \
        '        subprocess.run([sys.executable, "-c", "import planted"], env={**environment, **more}, capture_output=True).returncode == 0' \
        '        for more in settings' \
        '    ]' \
        'if found[-1]:' \
        '    sys.exit("a module in the user'"'"'s site packages was imported")' \
        'if found[0]:' \
        '    print("off in jobs, which set PYTHONNOUSERSITE; the image by itself leaves them on")' \
        else: \
        '    print("a module in the user'"'"'s site packages is not imported")' \
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
        'python3 forked.py '"'"'torch numpy ray ray.train ray.tune sklearn'"'"' '"'"'imports imports.py torch numpy ray ray.train ray.tune sklearn'"'"' '"'"'user-site user_site.py'"'"' </dev/null || status=1' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PATH="/opt/venv/bin:$PATH"
ENV PYTHONNOUSERSITE="1"
LABEL toolkit.recipe="ray_cpu"
LABEL toolkit.recipe-hash="383cd168481ae31109fa1ec42672c18aed23628bfe918842816e1d225059ecdf"
LABEL toolkit.version="0.1.0"
ENTRYPOINT []
CMD ["/bin/sh"]
