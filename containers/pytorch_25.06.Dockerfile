# pytorch_25.06: NGC PyTorch 25.06 with Horovod: NCCL, MPI and Gloo
#
# Written by toolkit from recipes/pytorch_25.06.toml. Change that file, then: toolkit image render pytorch_25.06 --format docker --write
# It can be built without toolkit; BuildKit also skips what has not changed:
#
#     DOCKER_BUILDKIT=1 docker build -t pytorch_25.06 -f pytorch_25.06.Dockerfile .

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
    echo '==> horovod: 0.28.1 with MPI, Gloo, NCCL'; \
    mkdir -p /opt/wheels /opt/horovod-source; \
    # What was compiled before against the same things need not be compiled again.
    cp /mnt/wheels/horovod-0.28.1-*.whl /opt/wheels/ 2>/dev/null || true; \
    pip install --no-compile setuptools wheel; \
    cd /opt/horovod-source; \
    pip download --no-deps --no-build-isolation --no-binary horovod horovod==0.28.1; \
    echo '92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0  horovod-0.28.1.tar.gz' | sha256sum -c -; \
    tar -xzf horovod-0.28.1.tar.gz --strip-components=1; \
    # torch's headers are C++17 since 2.1; this release of Horovod asks for C++14.
    if python3 -c "import sys, torch; sys.exit(tuple(map(int, torch.__version__.split('.')[:2])) < (2, 1))"; then sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' CMakeLists.txt horovod/torch/CMakeLists.txt; grep -q 'CMAKE_CXX_STANDARD 17' CMakeLists.txt; fi; \
    # Without debugging symbols it compiles faster, and they would be stripped anyway.
    sed -i s/RelWithDebInfo/Release/ setup.py; \
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1; \
    export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CUDA_HOME=/usr/local/cuda; \
    # CMake's is for a version of 4 or later, which else refuses the Gloo that Horovod carries; -s leaves the symbols out.
    export MAKEFLAGS="-j$(nproc)" CMAKE_POLICY_VERSION_MINIMUM=3.5 LDFLAGS=-s; \
    pip install --no-compile cffi cloudpickle packaging psutil pyyaml; \
    ldconfig /usr/local/cuda/lib64/stubs; \
    ls /opt/wheels/horovod-*.whl 2>/dev/null || pip wheel -v --no-deps --no-build-isolation -w /opt/wheels .; \
    ldconfig; \
    cd /; \
    rm -r /opt/horovod-source; \
    pip install --no-compile cffi cloudpickle packaging psutil pyyaml; \
    pip install --no-compile --no-deps --no-index /opt/wheels/horovod-*.whl; \
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
    echo '==> clean: what only the build needed'

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
        '"""Compares three witnesses of Horovod'"'"'s build: `horovodrun --check-build`, the metadata of the build, and its modules.' \
        '' \
        'One alone is not enough: --check-build was seen to show PyTorch for a build that had been made for TensorFlow only.' \
        'Arguments: frameworks and operations that it must be built with, a comma between them: pytorch , mpi gloo' \
        '"""' \
        '' \
        'import json' \
        'import re' \
        'import shutil' \
        'import subprocess' \
        'import sys' \
        'from importlib import import_module' \
        'from importlib.util import find_spec' \
        'from pathlib import Path' \
        'from typing import Any' \
        '' \
        'MODULES = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}' \
        'SECTIONS = {"Frameworks": "frameworks", "Controllers": "controllers", "Tensor Operations": "operations"}' \
        '' \
        '' \
        'def marked(text: str) -> "dict[str, list[str]]":' \
        '    """Return what `horovodrun --check-build` marks, by section, in lower case."""' \
        '    marks: dict[str, list[str]] = {name: [] for name in SECTIONS.values()}' \
        '    section = ""' \
        '    for line in text.splitlines():' \
        '        head = re.match(r"\s*Available (.+):", line)' \
        '        section = SECTIONS.get(head.group(1), "") if head else section' \
        '        mark = re.match(r"\s*\[X\] (\S+)", line)' \
        '        if mark and section:' \
        '            marks[section].append(mark.group(1).lower())' \
        '    return marks' \
        '' \
        '' \
        'def faults(name: str, marks: Any, metadata: Any, reason: "str | None", version: str, required: bool) -> Any:' \
        '    """Yield the contradictions about one framework; `reason` is why Horovod'"'"'s module for it fails, None if the framework is not there."""' \
        '    if reason is None:' \
        '        if required:' \
        '            yield f"it should work with {name}, which is not in the image"' \
        '        return' \
        '    shown, recorded = name in marks, metadata is None or name in metadata' \
        '    if shown and not recorded:' \
        '        yield f"--check-build shows {name}, but the metadata of its build does not have it"' \
        '    if shown and reason:' \
        '        yield f"--check-build shows {name}, but horovod.{MODULES[name]} cannot be imported ({reason})"' \
        '    if required and not shown:' \
        '        yield f"--check-build does not show {name}"' \
        '    if not shown and metadata is not None and recorded:' \
        '        yield f"the metadata of its build has {name}, but --check-build does not show it"' \
        '    built_for = (metadata or {}).get(name)' \
        '    if shown and built_for and version and built_for != version:' \
        '        yield f"Horovod was built for {name} {built_for}, and {version} is in the image"' \
        '' \
        '' \
        'def judge(marks: Any, metadata: Any, reasons: Any, versions: Any, frameworks: Any, operations: Any) -> "tuple[bool, str]":' \
        '    """Return whether the witnesses agree, and what they say."""' \
        '    wrong = [' \
        '        fault' \
        '        for name in MODULES' \
        '        for fault in faults(name, marks["frameworks"], metadata, reasons.get(name), versions.get(name, ""), name in frameworks)' \
        '    ]' \
        '    built = [name for name in MODULES if name in marks["frameworks"] and reasons.get(name) == ""]' \
        '    every = {name for names in marks.values() for name in names}' \
        '    wrong += [f"--check-build does not show {name}" for name in operations if name not in every]' \
        '    if not wrong and not built:' \
        '        wrong.append("it is built for no framework that is in the image")' \
        '    if not marks["controllers"]:' \
        '        wrong.append("it has neither MPI nor Gloo")' \
        '    if wrong:' \
        '        return False, "; ".join(wrong)' \
        '    names = ", ".join(f"{name} {(metadata or {}).get(name, '"'"''"'"')}".strip() for name in built)' \
        '    notes = [f"--check-build also shows {name}, which is not in the image" for name in marks["frameworks"] if name not in reasons]' \
        '    notes += [] if metadata is not None else ["this release keeps no metadata of its build"]' \
        '    parts = f"with {'"'"', '"'"'.join(marks['"'"'controllers'"'"'])}; operations {'"'"', '"'"'.join(marks['"'"'operations'"'"'])}"' \
        '    return True, "; ".join((f"built for {names}, {parts}", *notes))' \
        '' \
        '' \
        'def read_metadata() -> Any:' \
        '    """Return the metadata of Horovod'"'"'s build; None if there is none."""' \
        '    spec = find_spec("horovod")' \
        '    try:' \
        '        return json.loads((Path(spec.origin).parent / "metadata.json").read_text()) if spec and spec.origin else None' \
        '    except (OSError, ValueError):' \
        '        return None' \
        '' \
        '' \
        'def reason_of(module: str) -> str:' \
        '    """Return why a module cannot be imported; empty if it can."""' \
        '    try:' \
        '        import_module(module)' \
        '    except BaseException as error:  # also SystemExit' \
        '        return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['"'"''"'"'])[-1]}"' \
        '    return ""' \
        '' \
        '' \
        'def check_build(program: str) -> "tuple[int, str]":' \
        '    """Run `horovodrun --check-build`; return its exit code and what it printed.' \
        '' \
        '    In a fork of this process it finds what is imported already: it imports each framework seven times.' \
        '    """' \
        '    try:' \
        '        with Path(program).open("rb") as stream:' \
        '            is_python = b"python" in stream.readline(200)' \
        '        if is_python:' \
        '            code, text = import_module("forked").run_forked(program, "--check-build")' \
        '            return int(code), str(text)' \
        '        done = subprocess.run([program, "--check-build"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)' \
        '        return done.returncode, done.stdout.decode(errors="replace").strip()' \
        '    except OSError as error:' \
        '        return 127, str(error)' \
        '' \
        '' \
        'def main() -> None:' \
        '    """Ask the witnesses, and judge what they say."""' \
        '    split = sys.argv.index(",")' \
        '    reasons = {name: reason_of(f"horovod.{module}") for name, module in MODULES.items() if find_spec(module)}' \
        '    versions = {name: str(getattr(sys.modules.get(MODULES[name]), "__version__", "")) for name in reasons}' \
        '    code, text = check_build(shutil.which("horovodrun") or "horovodrun")' \
        '    if code:' \
        '        sys.exit(f"horovodrun --check-build ended with {code}: {(text or '"'"'?'"'"').splitlines()[-1]}")' \
        '    print(text)' \
        '    marks = marked(text)' \
        '    for name in marks["controllers"]:' \
        '        print(f"toolkit-fact: controller {name}")' \
        '    right, says = judge(marks, read_metadata(), reasons, versions, sys.argv[1:split], sys.argv[split + 1 :])' \
        '    print(says)' \
        '    sys.exit(0 if right else 1)' \
        '' \
        '' \
        'if __name__ == "__main__":' \
        '    main()' \
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
        '"""Sums vectors over several ranks, of which this is one, and compares with the right sum.' \
        '' \
        'Arguments: the library that sums (horovod, torch), the backend that carries it (mpi, gloo, nccl), how many ranks and hosts there must be,' \
        'and `start` if this program starts the ranks itself, in forks on this host. Rank 0 reports: a line of JSON, then the last line in words.' \
        'With RANKS_SPEED_MB it also measures how fast a vector of that many MB is summed.' \
        '"""' \
        '' \
        'import json' \
        'import os' \
        'import re' \
        'import signal' \
        'import socket' \
        'import sys' \
        'import tempfile' \
        'import time' \
        'import traceback' \
        'from importlib import import_module' \
        'from pathlib import Path' \
        'from typing import Any' \
        '' \
        'LENGTH = 1000' \
        'SPEED = int(os.environ.get("RANKS_SPEED_MB", "0")) * 10**6  # bytes' \
        'PATIENCE = 240  # seconds for a rank that this program starts' \
        '' \
        '' \
        'def driver() -> str:' \
        '    """Return the version of this node'"'"'s NVIDIA driver; empty if there is none."""' \
        '    try:' \
        '        match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text())' \
        '    except OSError:' \
        '        return ""' \
        '    return match.group(1) if match else ""' \
        '' \
        '' \
        'def expected(ranks: int) -> Any:' \
        '    """Return the right sum: rank r gives the vector 0, 1, 2, ... with r added to each element."""' \
        '    return [ranks * index + ranks * (ranks - 1) // 2 for index in range(LENGTH)]' \
        '' \
        '' \
        'def speed(ranks: int, add_up: Any, settle: Any) -> float:' \
        '    """Return the GB/s that each rank sends and receives while all sum a long vector.' \
        '' \
        '    The best of three counts, after one to warm up. A ring moves 2 (n - 1) / n times the vector through each of n ranks.' \
        '    """' \
        '    if not SPEED:' \
        '        return 0.0' \
        '    times = []' \
        '    for _ in range(4):' \
        '        settle()' \
        '        began = time.perf_counter()' \
        '        add_up()' \
        '        times.append(time.perf_counter() - began)' \
        '    return SPEED * 2 * (ranks - 1) / ranks / min(times[1:]) / 1e9' \
        '' \
        '' \
        'def judge(gathered: Any, controller: str, backend: str, ranks: int, nodes: int) -> str:' \
        '    """Return what is wrong with a sum; empty if nothing is."""' \
        '    hosts = sorted({each["host"] for each in gathered})' \
        '    if len(gathered) != ranks:' \
        '        return f"{len(gathered)} {'"'"'rank'"'"' if len(gathered) == 1 else '"'"'ranks'"'"'} found each other, not {ranks}"' \
        '    if len(hosts) != nodes:' \
        '        return f"the ranks were on {'"'"', '"'"'.join(hosts)}: {len(hosts)} {'"'"'node'"'"' if len(hosts) == 1 else '"'"'nodes'"'"'}, not {nodes}"' \
        '    if controller != backend:' \
        '        return f"it went by {controller}, not by {backend}"' \
        '    if sorted(each["rank"] for each in gathered) != list(range(ranks)) or not all(each["right"] for each in gathered):' \
        '        return "the sum over all ranks is wrong"' \
        '    return ""' \
        '' \
        '' \
        'def report(gathered: Any, controller: str, gigabytes_per_second: float = 0.0) -> int:' \
        '    """Print the report of all ranks; return the exit code."""' \
        '    backend, ranks, nodes = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])' \
        '    wrong = judge(gathered, controller, backend, ranks, nodes)' \
        '    where = f" on {'"'"', '"'"'.join(sorted({each['"'"'host'"'"'] for each in gathered}))}" if nodes > 1 else ""' \
        '    text = wrong or f"{ranks} ranks by {backend}{where}: the sum of their vectors is right"' \
        '    drivers = sorted({each["driver"] for each in gathered if each["driver"]})' \
        '    content = {"passed": not wrong, "detail": text, "drivers": drivers}' \
        '    if SPEED:' \
        '        content["gigabytes_per_second"] = round(gigabytes_per_second, 4)' \
        '    print(json.dumps(content))' \
        '    print(text, flush=True)' \
        '    return 1 if wrong else 0' \
        '' \
        '' \
        'def import_horovod() -> "tuple[str, Any]":' \
        '    """Return the first framework that Horovod is built for, and Horovod'"'"'s module for it."""' \
        '    try:' \
        '        return "torch", import_module("horovod.torch")' \
        '    except ImportError:' \
        '        return "tensorflow", import_module("horovod.tensorflow")' \
        '' \
        '' \
        'def by_horovod(backend: str) -> int:' \
        '    """Sum by Horovod; return the exit code."""' \
        '    name, hvd = import_horovod()' \
        '    framework = import_module(name)' \
        '    hvd.init()' \
        '    controller = "mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "none"' \
        '    rank, ranks = hvd.rank(), hvd.size()' \
        '    if name == "torch":' \
        '        device = f"cuda:{hvd.local_rank()}" if backend == "nccl" else "cpu"' \
        '        total = hvd.allreduce(framework.arange(float(LENGTH), device=device) + rank, op=hvd.Sum).tolist()' \
        '        long = framework.ones(max(SPEED // 4, 1), device=device)' \
        '    else:' \
        '        total = hvd.allreduce(framework.range(float(LENGTH)) + rank, op=hvd.Sum).numpy().tolist()' \
        '        long = framework.ones([max(SPEED // 4, 1)])' \
        '    fast = speed(ranks, lambda: hvd.allreduce(long, op=hvd.Sum, name="long"), lambda: hvd.allgather_object(rank))' \
        '    if backend == "nccl":' \
        '        controller = "nccl" if hvd.nccl_built() else controller' \
        '    mine = {"rank": rank, "host": socket.gethostname(), "right": total == expected(ranks), "driver": driver()}' \
        '    gathered = hvd.allgather_object(mine)' \
        '    code = report(gathered, controller, fast) if rank == 0 else 0' \
        '    hvd.shutdown()' \
        '    return code' \
        '' \
        '' \
        'def by_torch(backend: str) -> int:' \
        '    """Sum by torch.distributed; return the exit code."""' \
        '    torch = import_module("torch")' \
        '    dist = import_module("torch.distributed")' \
        '    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])' \
        '    device = f"cuda:{os.environ.get('"'"'LOCAL_RANK'"'"', rank)}" if backend == "nccl" else "cpu"' \
        '    if backend == "nccl":' \
        '        torch.cuda.set_device(device)' \
        '    dist.init_process_group(backend, init_method=os.environ.get("RANKS_MEET_AT", "env://"), rank=rank, world_size=ranks)' \
        '    total = torch.arange(float(LENGTH), device=device) + rank' \
        '    dist.all_reduce(total)' \
        '    long = torch.ones(max(SPEED // 4, 1), device=device)' \
        '' \
        '    def add_up() -> None:' \
        '        dist.all_reduce(long)' \
        '        if backend == "nccl":' \
        '            torch.cuda.synchronize()' \
        '' \
        '    fast = speed(ranks, add_up, dist.barrier)' \
        '    right = total.tolist() == expected(ranks)' \
        '    gathered: Any = [None] * ranks' \
        '    dist.all_gather_object(gathered, {"rank": rank, "host": socket.gethostname(), "right": right, "driver": driver()})' \
        '    code = report(gathered, dist.get_backend(), fast) if rank == 0 else 0' \
        '    dist.barrier()' \
        '    dist.destroy_process_group()' \
        '    return code' \
        '' \
        '' \
        'def be_rank() -> int:' \
        '    """Take part as the rank that the environment says; return the exit code."""' \
        '    return by_horovod(sys.argv[2]) if sys.argv[1] == "horovod" else by_torch(sys.argv[2])' \
        '' \
        '' \
        'def leave(code: int) -> None:' \
        '    """End this process at once: while Python shuts down, a thread of Gloo may still hold a tensor, and abort (pytorch#179291)."""' \
        '    sys.stdout.flush()' \
        '    sys.stderr.flush()' \
        '    os._exit(code)' \
        '' \
        '' \
        'def open_meeting(ranks: int) -> Any:' \
        '    """Return the server at which Horovod'"'"'s ranks meet; it is served by `start`, since a thread would not outlive a fork."""' \
        '    hosts = import_module("horovod.runner.common.util.hosts")' \
        '    http = import_module("horovod.runner.http.http_server")' \
        '    server = http.RendezvousHTTPServer(("127.0.0.1", 0), http.RendezvousHandler, 0)' \
        '    server.init(hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{ranks}"), ranks))' \
        '    server.timeout = 0.1' \
        '    return server' \
        '' \
        '' \
        'def variables(rank: int, ranks: int, port: int, directory: str) -> "dict[str, str]":' \
        '    """Return the variables of a rank that this program starts."""' \
        '    counts = {"RANK": rank, "SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_SIZE": ranks, "CROSS_RANK": 0, "CROSS_SIZE": 1}' \
        '    return {' \
        '        **{f"HOROVOD_{name}": str(count) for name, count in counts.items()},' \
        '        **dict.fromkeys(("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"), "gloo"),' \
        '        **dict.fromkeys(("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME"), "lo"),' \
        '        "HOROVOD_HOSTNAME": "localhost",' \
        '        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",' \
        '        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),' \
        '        "RANK": str(rank),' \
        '        "LOCAL_RANK": str(rank),' \
        '        "WORLD_SIZE": str(ranks),' \
        '        "RANKS_MEET_AT": f"file://{directory}/meet",' \
        '    }' \
        '' \
        '' \
        'def start(library: str, ranks: int, directory: str) -> int:' \
        '    """Fork the ranks from this process, which imports their framework, and wait for them; return 1 if one failed."""' \
        '    server = None' \
        '    if library == "horovod" and not import_horovod()[1].gloo_built():' \
        '        library = sys.argv[1] = "torch"' \
        '    if library == "horovod":' \
        '        server = open_meeting(ranks)' \
        '    else:' \
        '        import_module("torch.distributed")' \
        '    sys.stdout.flush()' \
        '    running = set()' \
        '    for rank in range(ranks):' \
        '        child = os.fork()' \
        '        if child == 0:' \
        '            code = 1' \
        '            try:' \
        '                signal.alarm(PATIENCE)' \
        '                os.environ.update(variables(rank, ranks, server.server_address[1] if server else 0, directory))' \
        '                code = be_rank()' \
        '            except BaseException:' \
        '                traceback.print_exc()' \
        '            finally:' \
        '                leave(code)' \
        '        running.add(child)' \
        '    failed = 0' \
        '    while running:' \
        '        if server:' \
        '            server.handle_request()' \
        '        child, status = os.waitpid(-1, os.WNOHANG if server else 0)' \
        '        running.discard(child)' \
        '        if child and status and not failed:' \
        '            failed = 1' \
        '            for other in running:  # they would wait for it' \
        '                os.kill(other, signal.SIGKILL)' \
        '    return failed' \
        '' \
        '' \
        'if __name__ == "__main__":' \
        '    if "start" in sys.argv[5:]:' \
        '        with tempfile.TemporaryDirectory() as directory:' \
        '            code = start(sys.argv[1], int(sys.argv[3]), directory)' \
        '        sys.exit(code)' \
        '    leave(be_rank())' \
        > /opt/toolkit/checks/ranks.py; \
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
        'python3 forked.py '"'"'horovod horovod.torch'"'"' '"'"'imports imports.py horovod horovod.torch'"'"' '"'"'horovod-build horovod_build.py pytorch , mpi gloo nccl'"'"' '"'"'ranks-gloo ranks.py horovod gloo 2 1 start'"'"' </dev/null || status=1' \
        'check ranks-mpi timeout 300 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 mpirun -n 2 --oversubscribe --bind-to none --mca btl self,vader --mca plm isolated python3 ranks.py horovod mpi 2 1' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PYTHONNOUSERSITE="1"
LABEL toolkit.recipe="pytorch_25.06"
LABEL toolkit.recipe-hash="68066efc44bce976648917e9f65a238cb79fb8fda9c05b6fa7fc311f740f8c44"
LABEL toolkit.version="0.1.0"
ENTRYPOINT []
CMD ["/bin/sh"]
