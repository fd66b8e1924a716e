"""One of two ranks: sums vectors over both by the controller that is named, and compares with what must come out."""

import sys
from importlib import import_module
from typing import Any

hvd: Any = import_module("horovod.tensorflow")
tf: Any = import_module("tensorflow")

hvd.init()
controller = "mpi" if hvd.mpi_enabled() else "gloo" if hvd.gloo_enabled() else "no"
if controller != sys.argv[1]:
    sys.exit(f"Horovod's controller is {controller}, not {sys.argv[1]}")
if hvd.size() != 2:
    sys.exit(f"{hvd.size()} ranks found each other, not 2")
ramp = tf.range(1000, dtype=tf.float32)
total = hvd.allreduce(ramp + hvd.rank(), op=hvd.Sum)
if not bool(tf.reduce_all(total == 2 * ramp + 1)):
    sys.exit("the sum over both ranks is wrong")
hvd.shutdown()
print(f"2 ranks by {controller}: the sum of their vectors is right")
