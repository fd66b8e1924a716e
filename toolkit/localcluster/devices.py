"""Find this machine's GPUs for the nodes of a local cluster."""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.localcluster.shape import Shape, all_nodes

_NAME = re.compile(r"nvidia(\d+)\Z")


def gpus_of(shape: Shape, directory: Path = Path("/dev")) -> tuple[int, ...]:
    """Return the number N of /dev/nvidiaN of each GPU of all nodes, in the order of the nodes.

    Empty if the machine has fewer than the nodes shall have: then all are simulated, since a job
    could not know which of its GPUs it can use.
    """
    wanted = sum(node.gpus for node in all_nodes(shape))
    names = (_NAME.match(path.name) for path in directory.glob("nvidia*") if path.is_char_device())
    numbers = sorted(int(name[1]) for name in names if name)
    return tuple(numbers[:wanted]) if len(numbers) >= wanted else ()
