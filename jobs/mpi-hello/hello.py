"""The smallest program of MPI: who is there, and one sum over all. The same as hello.c, in Python."""

import json
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
total = world.allreduce(rank)  # 0 + 1 + 2 + ...

# One write for the text and its end of line: print makes two, and the lines of two ranks could mix.
sys.stdout.write(f"rank {rank} of {size}  host {MPI.Get_processor_name()}\n")
sys.stdout.flush()
world.Barrier()
if rank == 0:
    version = MPI.Get_library_version().split(",")[0]
    print(json.dumps({"world_size": size, "sum": total, "expected": size * (size - 1) // 2, "mpi": version}), flush=True)
sys.exit(0 if total == size * (size - 1) // 2 else 1)
