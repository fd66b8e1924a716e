import socket
import sys
import threading

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

# Here the ranks tell each other their addresses: a port of this node, the first free one from the one that is given.
name, first, hosts = sys.argv[1], int(sys.argv[2]), sys.argv[3]
address = socket.gethostbyname(name)
if address.startswith("127."):
    address = ""  # the node calls itself so, the others do not
for attempt in range(4536):
    port = 61000 + (first - 61000 + attempt) % 4536
    try:
        server = RendezvousHTTPServer((address, port), RendezvousHandler, 0)
        break
    except OSError:
        continue
server.init(get_host_assignments(parse_hosts(hosts), 1))
threading.Thread(target=server.serve_forever, daemon=True).start()
print(port, flush=True)
sys.stdin.read()  # until the batch script closes it, or is gone
