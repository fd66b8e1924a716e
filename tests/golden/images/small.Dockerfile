# small: A small image; with { { braces } } in its summary
#
# Written by toolkit from recipes/small.toml. Change that file, then: toolkit image render small --format docker --write
# It can be built without toolkit; BuildKit also skips what has not changed:
#
#     DOCKER_BUILDKIT=1 docker build -t small -f small.Dockerfile .

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
    echo '==> apt: curl=7.88.1-10, python3, python3-venv, zip'; \
    # Nobody needs half an image after a power cut.
    if [ -d /etc/dpkg/dpkg.cfg.d ]; then echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/build; fi; \
    apt-get -qq update; \
    apt-get -qq -y install --no-install-recommends curl=7.88.1-10 python3 python3-venv zip; \
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
    echo '==> pip: six>=1.16, numpy'; \
    pip install --no-compile 'six>=1.16' numpy || pip install --no-compile --extra-index-url https://example.org/simple 'six>=1.16' numpy

RUN set -ex; \
    umask 022; \
    export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1; \
    if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi; \
    if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi; \
    if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi; \
    export PATH=/opt/venv/bin:$PATH; \
    echo '==> greet: 2 commands'; \
    apt-get -qq update; \
    apt-get -qq -y install --no-install-recommends make; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/*; \
    echo 'hello, world' > /greeting; \
    cat /greeting; \
    apt-get -qq -y autoremove --purge -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false make

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
        'check imports python3 imports.py numpy' \
        'check user-site python3 user_site.py' \
        'check greeting sh -c '"'"'test -s /greeting && cat /greeting'"'"'' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PATH="/opt/venv/bin:$PATH"
ENV PYTHONNOUSERSITE="1"
LABEL toolkit.recipe="small"
LABEL toolkit.recipe-hash="051b5f8c62e418f69670b72882109ec49efb1b8e39e7ce02c9750b5e0b6defe3"
LABEL toolkit.version="VERSION"
ENTRYPOINT []
CMD ["/bin/sh"]
