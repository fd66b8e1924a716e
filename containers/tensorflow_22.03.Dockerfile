# tensorflow_22.03: NGC TensorFlow 2 of 22.03, with Horovod
#
# Written by toolkit from recipes/tensorflow_22.03.toml. Change that file, then: toolkit image render tensorflow_22.03 --format docker --write
# It can be built without toolkit; BuildKit also skips what has not changed:
#
#     DOCKER_BUILDKIT=1 docker build -t tensorflow_22.03 -f tensorflow_22.03.Dockerfile .

ARG BASE=nvcr.io/nvidia/tensorflow:22.03-tf2-py3
FROM ${BASE} AS common

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
        '"""Compare what Horovod'"'"'s modules can do with the metadata of its build, and with the frameworks of the image.' \
        '' \
        'One witness alone is not enough: `horovodrun --check-build` was seen to show PyTorch for a build that had been made for TensorFlow only.' \
        'Arguments: frameworks and operations that it must be built with, a comma between them: pytorch , mpi gloo' \
        '"""' \
        '' \
        'import json' \
        'import sys' \
        'from importlib import import_module' \
        'from importlib.util import find_spec' \
        'from pathlib import Path' \
        '' \
        'MODULES = {"pytorch": "torch", "tensorflow": "tensorflow", "mxnet": "mxnet"}' \
        '' \
        'required, operations = (part.split() for part in " ".join(sys.argv[1:]).split(","))' \
        try: \
        '    metadata = json.loads(Path(str(getattr(find_spec("horovod"), "origin", ""))).with_name("metadata.json").read_text())' \
        'except (OSError, ValueError):' \
        '    metadata = None  # as of older releases' \
        'wrong, built, library = [], [], None' \
        'for name, module in MODULES.items():' \
        '    recorded = name in (metadata or ())' \
        '    try:' \
        '        imported = import_module(f"horovod.{module}")' \
        '        if not hasattr(imported, "mpi_built"):  # horovod.torch of 0.28.1 warns of this, and goes on' \
        '            raise ImportError("its library was not built")' \
        '    except BaseException as error:  # also SystemExit' \
        '        if name in required or (recorded and find_spec(module)):' \
        '            reason = (str(error).strip().splitlines() or [""])[-1]' \
        '            wrong.append(f"horovod.{module} cannot be imported ({type(error).__name__}: {reason})")' \
        '        continue' \
        '    library = library or imported' \
        '    version, built_for = str(getattr(sys.modules.get(module), "__version__", "")), (metadata or {}).get(name)' \
        '    built.append(f"{name} {built_for or '"'"''"'"'}".strip())' \
        '    if metadata is not None and not recorded:' \
        '        wrong.append(f"horovod.{module} can be imported, but the metadata of its build does not have {name}")' \
        '    elif built_for and version and built_for != version:' \
        '        wrong.append(f"Horovod was built for {name} {built_for}, and {version} is in the image")' \
        'controllers = [name for name in ("mpi", "gloo") if library and getattr(library, f"{name}_built")()]' \
        'has = [*controllers, *(["nccl"] if library and library.nccl_built() else [])]' \
        'wrong += [f"it is built without {name}" for name in operations if name not in has]' \
        'if not controllers:' \
        '    wrong.append("it has neither MPI nor Gloo" if library else "it is built for no framework that is in the image")' \
        'for name in controllers:' \
        '    print(f"toolkit-fact: controller {name}")' \
        'if wrong:' \
        '    sys.exit("; ".join(wrong))' \
        'note = " (this release keeps no metadata of its build)" if metadata is None else ""' \
        'print(f"built for {'"'"', '"'"'.join(built)}{note}, with {'"'"', '"'"'.join(has)}")' \
        > /opt/toolkit/checks/horovod_build.py; \
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
        '"""Sum vectors over several ranks, of which this is one, and compare with the right sum.' \
        '' \
        'Arguments: the library that sums (horovod, torch), the backend that carries it (mpi, gloo, nccl), how many ranks and hosts there must be,' \
        'and `start` if this program starts the ranks itself, in forks on this host. Rank 0 reports: a line of JSON, then the last line in words.' \
        'With RANKS_SPEED_MB it also measures how fast a vector of that many MB is summed.' \
        '"""' \
        '' \
        'import json' \
        'import multiprocessing' \
        'import os' \
        'import re' \
        'import signal' \
        'import socket' \
        'import sys' \
        'import tempfile' \
        'import threading' \
        'import time' \
        'from importlib import import_module' \
        'from multiprocessing.connection import wait' \
        'from pathlib import Path' \
        'from typing import Any' \
        '' \
        'LENGTH = 1000' \
        'SPEED = int(os.environ.get("RANKS_SPEED_MB", "0")) * 10**6  # bytes' \
        'PATIENCE = 240  # seconds for a rank that this program starts' \
        '' \
        '' \
        'class Torch:' \
        '    """A rank that sums by torch.distributed."""' \
        '' \
        '    def __init__(self, backend: str) -> None:' \
        '        self.torch, self.dist = import_module("torch"), import_module("torch.distributed")' \
        '        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])' \
        '        self.device = f"cuda:{os.environ.get('"'"'LOCAL_RANK'"'"', self.rank)}" if backend == "nccl" else "cpu"' \
        '        if backend == "nccl":' \
        '            self.torch.cuda.set_device(self.device)' \
        '        meeting = os.environ.get("RANKS_MEET_AT", "env://")' \
        '        self.dist.init_process_group(backend, init_method=meeting, rank=self.rank, world_size=self.size)' \
        '        self.backend = self.dist.get_backend()' \
        '' \
        '    def vector(self, numbers: Any) -> Any:' \
        '        return self.torch.tensor(numbers, device=self.device)' \
        '' \
        '    def add_up(self, vector: Any) -> Any:' \
        '        self.dist.all_reduce(vector)' \
        '        if self.backend == "nccl":' \
        '            self.torch.cuda.synchronize()' \
        '        return vector' \
        '' \
        '    def gather(self, value: Any) -> Any:' \
        '        values = [None] * self.size' \
        '        self.dist.all_gather_object(values, value)' \
        '        return values' \
        '' \
        '    def close(self) -> None:' \
        '        self.dist.barrier()' \
        '        self.dist.destroy_process_group()' \
        '' \
        '' \
        'def import_horovod() -> "tuple[Any, Any]":' \
        '    """Return Horovod'"'"'s module for the first framework that it is built for, and what makes a vector there."""' \
        '    try:' \
        '        return import_module("horovod.torch"), import_module("torch").tensor' \
        '    except ImportError:' \
        '        return import_module("horovod.tensorflow"), import_module("tensorflow").constant' \
        '' \
        '' \
        'class Horovod:' \
        '    """A rank that sums by Horovod, on its CPU."""' \
        '' \
        '    def __init__(self) -> None:' \
        '        self.hvd, self.vector = import_horovod()' \
        '        self.hvd.init()' \
        '        self.rank, self.size = self.hvd.rank(), self.hvd.size()' \
        '        self.backend = "mpi" if self.hvd.mpi_enabled() else "gloo" if self.hvd.gloo_enabled() else "none"' \
        '        self.gather, self.close = self.hvd.allgather_object, self.hvd.shutdown' \
        '' \
        '    def add_up(self, vector: Any) -> Any:' \
        '        return self.hvd.allreduce(vector, op=self.hvd.Sum, name="sum")' \
        '' \
        '' \
        'def measure(group: Any) -> float:' \
        '    """Return the GB/s that each rank sends and receives while all sum a long vector; 0 if that is not wanted.' \
        '' \
        '    The best of three counts, after one to warm up. A ring moves 2 (n - 1) / n times the vector through each of n ranks.' \
        '    """' \
        '    vector, times = group.vector([1.0] * (SPEED // 4)), []' \
        '    for _ in range(4 if SPEED else 0):' \
        '        group.gather(0)' \
        '        began = time.perf_counter()' \
        '        group.add_up(vector)' \
        '        times.append(time.perf_counter() - began)' \
        '    return SPEED * 2 * (group.size - 1) / group.size / min(times[1:]) / 1e9 if SPEED else 0.0' \
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
        'def judge(gathered: Any, used: str, backend: str, ranks: int, nodes: int) -> str:' \
        '    """Return what is wrong with a sum; empty if nothing is."""' \
        '    hosts = sorted({each["host"] for each in gathered})' \
        '    if len(gathered) != ranks:' \
        '        return f"{len(gathered)} {'"'"'rank'"'"' if len(gathered) == 1 else '"'"'ranks'"'"'} found each other, not {ranks}"' \
        '    if len(hosts) != nodes:' \
        '        return f"the ranks were on {'"'"', '"'"'.join(hosts)}: {len(hosts)} {'"'"'node'"'"' if len(hosts) == 1 else '"'"'nodes'"'"'}, not {nodes}"' \
        '    if used != backend:' \
        '        return f"it went by {used}, not by {backend}"' \
        '    if sorted(each["rank"] for each in gathered) != list(range(ranks)) or not all(each["right"] for each in gathered):' \
        '        return "the sum over all ranks is wrong"' \
        '    return ""' \
        '' \
        '' \
        'def be_rank(library: str, backend: str, ranks: int, nodes: int) -> int:' \
        '    """Sum as the rank that the environment says; rank 0 reports. Return the exit code."""' \
        '    group = Horovod() if library == "horovod" else Torch(backend)' \
        '    total = group.add_up(group.vector([float(index + group.rank) for index in range(LENGTH)]))' \
        '    right = [group.size * index + group.size * (group.size - 1) // 2 for index in range(LENGTH)] == [float(number) for number in total]' \
        '    speed = measure(group)' \
        '    gathered = group.gather({"rank": group.rank, "host": socket.gethostname(), "right": right, "driver": driver()})' \
        '    wrong = judge(gathered, group.backend, backend, ranks, nodes)' \
        '    if group.rank == 0:' \
        '        where = f" on {'"'"', '"'"'.join(sorted({each['"'"'host'"'"'] for each in gathered}))}" if nodes > 1 else ""' \
        '        text = wrong or f"{ranks} ranks by {backend}{where}: the sum of their vectors is right"' \
        '        drivers = sorted({each["driver"] for each in gathered if each["driver"]})' \
        '        print(json.dumps({"passed": not wrong, "detail": text, "drivers": drivers, "gigabytes_per_second": round(speed, 4)}))' \
        '        print(text, flush=True)' \
        '    group.close()' \
        '    return 1 if wrong else 0' \
        '' \
        '' \
        'def be_forked(rank: int, address: str, *arguments: Any) -> None:' \
        '    """Sum as a rank that this program started; `address` is where the ranks meet: a file, or a port of this host."""' \
        '    signal.alarm(PATIENCE)' \
        '    counts = {"RANK": rank, "SIZE": arguments[2], "LOCAL_RANK": rank, "LOCAL_SIZE": arguments[2], "CROSS_RANK": 0, "CROSS_SIZE": 1}' \
        '    os.environ.update({f"HOROVOD_{name}": str(count) for name, count in counts.items()})' \
        '    os.environ.update(dict.fromkeys(("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"), "gloo"))' \
        '    os.environ.update(dict.fromkeys(("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME"), "lo"))' \
        '    os.environ.update(HOROVOD_HOSTNAME="localhost", HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1", HOROVOD_GLOO_RENDEZVOUS_PORT=address)' \
        '    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(arguments[2]), RANKS_MEET_AT=f"file://{address}")' \
        '    sys.exit(be_rank(*arguments))' \
        '' \
        '' \
        'def open_meeting(ranks: int) -> Any:' \
        '    """Return the server at which Horovod'"'"'s ranks meet."""' \
        '    hosts = import_module("horovod.runner.common.util.hosts")' \
        '    http = import_module("horovod.runner.http.http_server")' \
        '    server = http.RendezvousHTTPServer(("127.0.0.1", 0), http.RendezvousHandler, 0)' \
        '    server.init(hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{ranks}"), ranks))' \
        '    return server' \
        '' \
        '' \
        'def start(directory: str, library: str, backend: str, ranks: int, nodes: int) -> int:' \
        '    """Fork the ranks from this process, which imports their framework, and wait for them; return 1 if one failed."""' \
        '    server, address = None, f"{directory}/meet"' \
        '    if library == "horovod" and import_horovod()[0].gloo_built():' \
        '        server = open_meeting(ranks)' \
        '        address = str(server.server_address[1])' \
        '    else:' \
        '        library = "torch"' \
        '        import_module("torch.distributed")' \
        '    fork = multiprocessing.get_context("fork").Process' \
        '    forked = [fork(target=be_forked, args=(rank, address, library, backend, ranks, nodes)) for rank in range(ranks)]' \
        '    for each in forked:' \
        '        each.start()' \
        '    if server:  # only now: a thread would not outlive a fork' \
        '        threading.Thread(target=server.serve_forever, daemon=True).start()' \
        '    running = forked' \
        '    while running:' \
        '        wait([each.sentinel for each in running])' \
        '        running = [each for each in running if each.is_alive()]' \
        '        for each in running if any(each.exitcode for each in forked) else ():' \
        '            each.kill()  # it would wait for the one that failed' \
        '    return int(any(each.exitcode for each in forked))' \
        '' \
        '' \
        'if __name__ == "__main__":' \
        '    words = (sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))' \
        '    if "start" in sys.argv[5:]:' \
        '        with tempfile.TemporaryDirectory() as directory:' \
        '            code = start(directory, *words)' \
        '        sys.exit(code)' \
        '    code = be_rank(*words)' \
        '    sys.stdout.flush()' \
        '    sys.stderr.flush()' \
        '    os._exit(code)  # while Python shuts down, a thread of Gloo may still hold a tensor, and abort (pytorch#179291)' \
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
        'python3 forked.py '"'"'horovod horovod.tensorflow'"'"' '"'"'imports imports.py horovod horovod.tensorflow'"'"' '"'"'horovod-build horovod_build.py tensorflow , mpi gloo nccl'"'"' </dev/null & forked=$!  # beside the others' \
        'check ranks-mpi timeout 300 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 mpirun -n 2 --oversubscribe --bind-to none --mca btl self,vader --mca plm isolated python3 ranks.py horovod mpi 2 1' \
        'check ranks-gloo timeout 300 horovodrun --disable-cache --gloo --network-interfaces lo -np 2 python3 ranks.py horovod gloo 2 1' \
        'wait "$forked" || status=1' \
        'exit $status' \
        > /opt/toolkit/checks/run

ENV PYTHONNOUSERSITE="1"
LABEL toolkit.recipe="tensorflow_22.03"
LABEL toolkit.recipe-hash="533bcee876486e1ea928f3d40fb23ab204fb6e4422e3ffb3ae170c6477f36f81"
LABEL toolkit.version="0.1.0"
ENTRYPOINT []
CMD ["/bin/sh"]
