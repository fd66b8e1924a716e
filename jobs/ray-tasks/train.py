"""Ray's two ideas: a function that runs somewhere else (a task), and an object that lives somewhere else (an actor).

Started once; Ray is there already, on all nodes, and ray.init() finds it. It runs on a laptop as well, where ray.init() starts Ray itself.
"""

import argparse
import json
import socket
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tasks", type=int, default=4, help="how many tasks, and how many actors (default 4)")
args = parser.parse_args()

started = time.perf_counter()
ray.init(log_to_driver=False)
nodes = sorted(node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"])


@ray.remote
def square(x):
    return x * x, socket.gethostname()


@ray.remote(num_cpus=0)  # it takes no CPU while nobody calls it, so that there may be many
class Counter:
    def __init__(self):
        self.count = 0

    def increment(self):
        self.count += 1
        return self.count, socket.gethostname()


# A CPU on each node. Without this Ray decides where things run: it fills the node that the script is on, and then goes to others.
places = placement_group([{"CPU": 1}] * len(nodes), strategy="STRICT_SPREAD")
ray.get(places.ready())
in_turn = [PlacementGroupSchedulingStrategy(places, placement_group_bundle_index=index % len(nodes)) for index in range(args.tasks)]

# remote() comes back at once, with a promise; get() waits for what was promised.
squares = ray.get([square.options(scheduling_strategy=place).remote(x) for x, place in enumerate(in_turn)])
counters = [Counter.options(scheduling_strategy=place).remote() for place in in_turn]
counts = ray.get([counter.increment.remote() for counter in counters])

result = {
    "tasks": [value for value, _ in squares],
    "actors": [value for value, _ in counts],
    "nodes": nodes,
    "tasks_on": sorted({host for _, host in squares}),
    "actors_on": sorted({host for _, host in counts}),
    "seconds": round(time.perf_counter() - started, 3),
}
ray.shutdown()
print(json.dumps(result), flush=True)
