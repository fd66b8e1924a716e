import os
import sys
import time

import ray

# Until Ray gives work to all nodes; then this becomes the script.
nodes, patience = int(sys.argv[1]), time.monotonic() + 300
alive = 0
while alive < nodes:
    try:
        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level="ERROR")
        alive = sum(node["Alive"] for node in ray.nodes())
    except ConnectionError:
        pass
    if time.monotonic() > patience:
        sys.exit(f"ray: {alive} of {nodes} nodes came up in 300 s")
    time.sleep(0.2)
ray.shutdown()
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write(f"{sys.argv[2]} cannot be started: {error.strerror}\n")
    sys.exit(127)
