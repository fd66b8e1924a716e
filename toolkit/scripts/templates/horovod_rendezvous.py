import socket
import sys
import threading

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

# Here the ranks tell each other their addresses: a port of this node, the first free one from the one that is given.
name, start, ports, hosts = sys.argv[1:]
first, last = map(int, ports.split("-"))
address = socket.gethostbyname(name)
if address.startswith("127."):
    address = ""  # the node calls itself so, the others do not
for port in (*range(int(start), last + 1), *range(first, int(start))):
    try:
        server = RendezvousHTTPServer((address, port), RendezvousHandler, 0)
        break
    except OSError:
        continue
server.init(get_host_assignments(parse_hosts(hosts), 1))
threading.Thread(target=server.serve_forever, daemon=True).start()
print(port, flush=True)
sys.stdin.read()  # until the batch script closes it, or is gone
