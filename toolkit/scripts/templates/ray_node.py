# Ray under Slurm: this runs once on each node of a job and starts Ray there; on the first node also the script, when Ray is on all of them.
# Called as: FIRST-NODE PORT PORTS NODES CPUS GPUS INTERFACE COMMAND...
from __future__ import annotations

import ctypes
import fcntl
import os
import queue
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parent))
from handshake import SECRET, Link, answer, call, hang_up, keyed

PATIENCE = 300  # seconds for all nodes to arrive
# Ray's own word, without which it takes no work. Ray sends it as it is: so it is not the secret.
TOKEN = os.environ["RAY_AUTH_TOKEN"] = keyed(SECRET, b"ray").hex()[:32]
SERVERS = ("raylet", "gcs_server")  # Ray is on a node as long as these are
first, port, ports, nodes, cpus, gpus, interface, *command = sys.argv[1:]
head, name = os.environ["SLURM_PROCID"] == "0", socket.gethostname()
# The same on all nodes, as old versions of Ray want it, and short: the names of sockets in it have room for 107 characters.
directory = f"/tmp/ray-{os.environ['SLURM_JOB_ID']}-{keyed(SECRET, b'directory').hex()[:8]}"


def end(code: int, why: str = "") -> NoReturn:
    """Leave nothing behind: no process that began below this one, whatever it became since, and no file."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if why:
        sys.stderr.write(f"ray: {why}\n")
    while True:
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    shutil.rmtree(directory, ignore_errors=True)
    sys.stderr.flush()
    os._exit(code)


def code_of(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def keep() -> None:
    """Go on in a child: if it is killed, this process clears up, and if this one is, the child does."""
    adopt = ctypes.CDLL(None).prctl
    adopt(36, 1)  # PR_SET_CHILD_SUBREAPER: Ray's servers, which leave whoever started them, stay below this process
    pid = os.fork()
    if pid:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the child has it, too, and acts on it
        end(code_of(os.waitpid(pid, 0)[1]))
    signal.signal(signal.SIGTERM, lambda *_: end(143))
    adopt(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    adopt(36, 1)


def children() -> dict[int, str]:
    """Processes whose parent this is, with their names."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            before, _, after = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        if int(after.split()[1]) == os.getpid():
            found[int(entry.name)] = before.partition("(")[2]
    return found


def free(place: int) -> int:
    """A port of this node that nobody has, from one that the job's number gives; each ``place`` is far from the others."""
    low, high = map(int, ports.split("-"))
    count = high - low + 1
    for attempt in range(count):
        found = low + (int(port) - low + count * place // 5 + attempt) % count
        with socket.socket() as probe:
            try:
                probe.bind(("", found))
            except OSError:
                continue
            return found
    end(1, f"no port is free on {name}")


def address_of(own: socket.socket | None) -> str:
    """Where the other nodes find this one: in the network that the site names, else where the nodes have met."""
    if own is None:
        return "127.0.0.1"  # the only node
    if interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            try:
                answer = fcntl.ioctl(any_socket.fileno(), 0x8915, struct.pack("256s", interface.encode()[:15]))  # SIOCGIFADDR
            except OSError as error:
                end(1, f"{name} has no address at {interface}: {error.strerror}")
        return socket.inet_ntoa(answer[20:24])
    return str(own.getsockname()[0])


def start_ray(cluster: str, *words: str) -> None:
    """Start Ray on this node; it is there when this returns."""
    Path(directory).mkdir(mode=0o700, parents=True)
    # Ray's servers and workers look for Ray, too (Train for the state of its actors), and give up where another job has one on the node.
    os.environ["RAY_ADDRESS"] = cluster
    # Ray's libraries lock below /tmp/_ray_lockfiles, which belongs to the first user who had Ray on the node.
    os.environ["RAY_TMPDIR"] = directory
    # Ports that have a fixed number where nobody names one; all others Ray takes as they are free.
    named = {"--ray-client-server-port": 2, "--dashboard-port": 3, "--dashboard-agent-listen-port": 4}
    options = [f"{option}={free(place)}" for option, place in named.items() if head or option == "--dashboard-agent-listen-port"]
    options += ["--min-worker-port=0", "--max-worker-port=0", f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--disable-usage-stats"]
    memory = int(os.environ.get("SLURM_MEM_PER_NODE", 0))  # of the job, in MiB; Ray itself looks at the whole node
    options += [f"--object-store-memory={memory * 3 // 10 << 20}"] if memory >= 512 else []
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(["ray", "start", *words, *options], text=True, errors="replace", check=False, **pipes)  # type: ignore[call-overload]
    if done.returncode != 0:
        end(1, f"Ray did not start on {name}:\n{done.stdout}")


def watch(script: int | None = None, link: socket.socket | None = None) -> NoReturn:
    """Until the script has ended (on the first node) or the first node has (on the others); Ray must be there all the time."""
    servers = {pid: what for pid, what in children().items() if what in SERVERS}
    while True:
        pid, status = os.waitpid(-1, 0 if link is None else os.WNOHANG)
        if pid and pid == script:
            end(code_of(status))
        if pid in servers:
            end(1, f"{servers[pid]} of Ray ended on {name}")
        if link is not None and select.select([link], [], [], 0 if pid else 0.5)[0]:
            end(0)  # the first node says nothing more: it is gone


# Until Ray counts all nodes, which is after "ray start" has come back. The first way is that of symmetric-run, and needs no driver.
COUNTING = """
import sys, time
address, nodes = sys.argv[1], int(sys.argv[2])
try:
    from ray._raylet import GcsClient
    client = GcsClient(address=address)
    count = lambda: sum(node.state == 0 for node in client.get_all_node_info(timeout=10).values())
    count()
except (ImportError, AttributeError, TypeError):  # another version of Ray
    import ray
    ray.init(address=address, log_to_driver=False)
    count = lambda: sum(node["Alive"] for node in ray.nodes())
while count() < nodes:
    time.sleep(0.2)
"""


def wait_for_all(address: str) -> None:
    """Until Ray gives work to all nodes."""
    try:
        subprocess.run([sys.executable, "-c", COUNTING, address, nodes], check=True, timeout=PATIENCE)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        end(1, f"Ray did not come up on {nodes} nodes: {error}")


def arrivals() -> list[Link]:
    """The other nodes, when all are there and have proved that they belong to this job."""
    links: dict[str, Link] = {}
    if int(nodes) == 1:
        return []
    try:
        server = socket.create_server(("", int(port)))
    except OSError as error:
        end(1, f"{name} cannot listen at port {port}: {error.strerror}")
    until = time.monotonic() + PATIENCE
    arrived: queue.Queue[Link] = queue.Queue()
    threading.Thread(target=answer, args=(server, "ray", arrived.put), daemon=True).start()
    while len(links) < int(nodes) - 1:
        try:
            link = arrived.get(timeout=max(0, until - time.monotonic()))
        except queue.Empty:
            end(1, f"{len(links) + 1} of {nodes} nodes arrived in {PATIENCE} s")
        hello = link.read()
        if hello:  # a node that has called twice counts once
            links[hello["node"]] = link
    hang_up(server)
    return list(links.values())


def lead() -> NoReturn:
    """The first node: wait for the others, start Ray, let them join, and run the script."""
    links = arrivals()
    address, gcs = address_of(links[0].connection if links else None), free(1)
    cluster = f"{address}:{gcs}"
    start_ray(cluster, "--head", f"--node-ip-address={address}", f"--port={gcs}", f"--temp-dir={directory}", "--include-dashboard=false")
    for link in links:
        link.connection.settimeout(PATIENCE)
        link.send(address=cluster)
    for link in links:
        if not link.read():
            end(1, "Ray did not come up on all nodes")
    wait_for_all(cluster)
    try:
        script = subprocess.Popen(command, stdin=subprocess.DEVNULL).pid
    except OSError as error:
        end(127, f"{command[0]} cannot be started: {error.strerror}")
    watch(script=script)


def join() -> NoReturn:
    """Any other node: find the first one, and be there until it is gone."""
    link = call(first, int(port), "ray", PATIENCE)
    if link is None:
        end(1, f"{name} does not reach this job's program on {first}, port {port}, in {PATIENCE} s")
    link.connection.settimeout(PATIENCE)
    link.send(node=name)
    found = link.read()
    if not found:
        end(0)  # the first node tells why
    start_ray(found["address"], f"--address={found['address']}", f"--node-ip-address={address_of(link.connection)}")
    link.send(here=True)
    watch(link=link.connection)


keep()
try:
    lead() if head else join()
except Exception as error:
    end(1, f"{name}: {error!r}")
