"""The libraries that can add up a buffer over all ranks, each as a class with the same few words."""

import os
import sys

import torch


class Torch:
    """torch.distributed, with NCCL or Gloo; torchrun says who we are."""

    def __init__(self, backend):
        import torch.distributed as dist

        usable = torch.cuda.is_available()
        self.name = ("nccl" if usable else "gloo") if backend == "auto" else backend
        if self.name == "nccl" and not usable:
            sys.exit("NCCL needs GPUs, and this PyTorch can use none; --backend gloo works without")
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", self.local_rank) if self.name == "nccl" else torch.device("cpu")
        if self.name == "nccl":
            torch.cuda.set_device(self.device)
        dist.init_process_group(self.name)
        self.dist, self.rank, self.size = dist, dist.get_rank(), dist.get_world_size()

    def add_up(self, buffer):
        self.dist.all_reduce(buffer)

    def gather(self, thing):
        everything = [None] * self.size
        self.dist.all_gather_object(everything, thing)
        return everything

    def leave(self):
        self.dist.barrier()
        self.dist.destroy_process_group()


class Horovod:
    """Horovod, over whatever it was built with; MPI says who we are."""

    name = "horovod"

    def __init__(self):
        import horovod.torch as hvd

        hvd.init()
        self.hvd, self.rank, self.size, self.local_rank = hvd, hvd.rank(), hvd.size(), hvd.local_rank()
        self.device = torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def add_up(self, buffer):
        self.hvd.allreduce_(buffer, op=self.hvd.Sum, name="buffer")

    def gather(self, thing):
        return self.hvd.allgather_object(thing, name="thing")

    def leave(self):
        self.hvd.barrier()
        self.hvd.shutdown()


class Mpi:
    """MPI itself, on CPUs, with nothing between."""

    name, device = "mpi", torch.device("cpu")

    def __init__(self):
        from mpi4py import MPI

        self.world, self.in_place = MPI.COMM_WORLD, MPI.IN_PLACE
        self.rank, self.size = self.world.rank, self.world.size
        self.local_rank = self.world.Split_type(MPI.COMM_TYPE_SHARED).rank

    def add_up(self, buffer):
        self.world.Allreduce(self.in_place, buffer.numpy())

    def gather(self, thing):
        return self.world.allgather(thing)

    def leave(self):
        self.world.Barrier()


def meet(backend):
    """All ranks, met over one of them."""
    return {"horovod": Horovod, "mpi": Mpi}[backend]() if backend in ("horovod", "mpi") else Torch(backend)
