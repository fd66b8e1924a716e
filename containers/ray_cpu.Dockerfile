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
    # Byte code of what a step adds or changes, so that imports read no source.
    began=$(date +%s.%N); sleep 0.02; \
    byte_code() { find /opt/venv/lib -name '*.py' -newerct "@$began" ! -path '*/test/*' ! -path '*/tests/*' -print0 | xargs -0 -r -n 200 -P "$(nproc)" /opt/venv/bin/python3 -m compileall -qq --invalidation-mode unchecked-hash || true; began=$(date +%s.%N); sleep 0.02; }; \
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
    # Byte code of what a step adds or changes, so that imports read no source.
    began=$(date +%s.%N); sleep 0.02; \
    byte_code() { find /opt/venv/lib -name '*.py' -newerct "@$began" ! -path '*/test/*' ! -path '*/tests/*' -print0 | xargs -0 -r -n 200 -P "$(nproc)" /opt/venv/bin/python3 -m compileall -qq --invalidation-mode unchecked-hash || true; began=$(date +%s.%N); sleep 0.02; }; \
    echo '==> python: a virtual environment in /opt/venv'; \
    python3 -m venv /opt/venv; \
    byte_code

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    # Byte code of what a step adds or changes, so that imports read no source.
    began=$(date +%s.%N); sleep 0.02; \
    byte_code() { find /opt/venv/lib -name '*.py' -newerct "@$began" ! -path '*/test/*' ! -path '*/tests/*' -print0 | xargs -0 -r -n 200 -P "$(nproc)" /opt/venv/bin/python3 -m compileall -qq --invalidation-mode unchecked-hash || true; began=$(date +%s.%N); sleep 0.02; }; \
    echo '==> torch: torch 2.13.0+cpu, numpy 2.4.6'; \
    pip install --no-compile torch==2.13.0+cpu numpy==2.4.6 || pip install --no-compile --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu numpy==2.4.6; \
    byte_code

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    # Byte code of what a step adds or changes, so that imports read no source.
    began=$(date +%s.%N); sleep 0.02; \
    byte_code() { find /opt/venv/lib -name '*.py' -newerct "@$began" ! -path '*/test/*' ! -path '*/tests/*' -print0 | xargs -0 -r -n 200 -P "$(nproc)" /opt/venv/bin/python3 -m compileall -qq --invalidation-mode unchecked-hash || true; began=$(date +%s.%N); sleep 0.02; }; \
    echo '==> ray: ray[default,train,tune] 2.60.0'; \
    # What the image is verified for stays as it is.
    mkdir -p /opt/toolkit; \
    pip list --format=freeze | grep -iE '^(torch|numpy)==' > /opt/toolkit/constraints.txt || true; \
    export PIP_CONSTRAINT="/opt/toolkit/constraints.txt${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"; \
    pip install --no-compile 'ray[default,train,tune]==2.60.0' || { echo 'toolkit-conflict: ray[default,train,tune]==2.60.0'; pip install --dry-run ray | sed -n 's/^Would install /toolkit-fits: /p'; exit 1; }; \
    byte_code

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    # Byte code of what a step adds or changes, so that imports read no source.
    began=$(date +%s.%N); sleep 0.02; \
    byte_code() { find /opt/venv/lib -name '*.py' -newerct "@$began" ! -path '*/test/*' ! -path '*/tests/*' -print0 | xargs -0 -r -n 200 -P "$(nproc)" /opt/venv/bin/python3 -m compileall -qq --invalidation-mode unchecked-hash || true; began=$(date +%s.%N); sleep 0.02; }; \
    echo '==> pip: scikit-learn 1.9.1'; \
    # What the image is verified for stays as it is.
    mkdir -p /opt/toolkit; \
    pip list --format=freeze | grep -iE '^(torch|numpy|ray)==' > /opt/toolkit/constraints.txt || true; \
    export PIP_CONSTRAINT="/opt/toolkit/constraints.txt${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"; \
    pip install --no-compile scikit-learn==1.9.1 || { echo 'toolkit-conflict: scikit-learn==1.9.1'; pip install --dry-run scikit-learn | sed -n 's/^Would install /toolkit-fits: /p'; exit 1; }; \
    byte_code

FROM common

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    # Byte code of what a step adds or changes, so that imports read no source.
    began=$(date +%s.%N); sleep 0.02; \
    byte_code() { find /opt/venv/lib -name '*.py' -newerct "@$began" ! -path '*/test/*' ! -path '*/tests/*' -print0 | xargs -0 -r -n 200 -P "$(nproc)" /opt/venv/bin/python3 -m compileall -qq --invalidation-mode unchecked-hash || true; began=$(date +%s.%N); sleep 0.02; }; \
    echo '==> clean: what only the build needed'; \
    rm -f /etc/dpkg/dpkg.cfg.d/build; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/cache/debconf/*-old /var/lib/dpkg/*-old; \
    find /var/log -type f -delete; \
    echo '# The mirror of the build is not kept. Write: deb <your mirror> bookworm main' > /etc/apt/sources.list

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
        '"""Check that packages in a user'"'"'s home do not hide the image'"'"'s: a module planted there is not found.' \
        '' \
        'With `--foreign`, as for images of others, it is enough that it is not found where PYTHONNOUSERSITE is set, as in every job.' \
        '"""' \
        '' \
        'import os' \
        'import subprocess' \
        'import sys' \
        'import sysconfig' \
        'import tempfile' \
        'from pathlib import Path' \
        '' \
        'with tempfile.TemporaryDirectory() as home:' \
        '    packages = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": home}))' \
        '    packages.mkdir(parents=True)' \
        '    (packages / "planted.py").touch()' \
        '    plain = {**os.environ, "HOME": home, "PYTHONUSERBASE": home}' \
        '    in_jobs = {**plain, "PYTHONNOUSERSITE": "1"}' \
        '    found, found_in_jobs = [' \
        '        subprocess.run([sys.executable, "-c", "import planted"], env=variables, capture_output=True).returncode == 0' \
        '        for variables in (plain, in_jobs)' \
        '    ]' \
        'if found_in_jobs or (found and "--foreign" not in sys.argv):' \
        '    sys.exit("a module in the user'"'"'s site packages was imported")' \
        'print("off in jobs, which set PYTHONNOUSERSITE; the image by itself leaves them on" if found else "a module in the user'"'"'s site packages is not imported")' \
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
        'python3 forked.py '"'"'torch numpy ray ray.train ray.tune sklearn'"'"' '"'"'imports imports.py torch numpy ray ray.train ray.tune sklearn'"'"' '"'"'user-site user_site.py'"'"' </dev/null & forked=$!  # beside the others' \
        'wait "$forked" || status=1' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PATH="/opt/venv/bin:$PATH"
ENV PYTHONNOUSERSITE="1"
LABEL toolkit.recipe="ray_cpu"
LABEL toolkit.recipe-hash="791357cd932f9a3de1599c5746bc66495b6a99b0ba771c30ac0871b640784f4a"
LABEL toolkit.version="0.1.0"
ENTRYPOINT []
CMD ["/bin/sh"]
