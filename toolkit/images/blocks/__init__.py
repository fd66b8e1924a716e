"""What a step of a recipe can be. A new block is a module of its own and a line here."""

from __future__ import annotations

from toolkit.images.blocks.apt import Apt
from toolkit.images.blocks.copy import Copy
from toolkit.images.blocks.env import Env
from toolkit.images.blocks.horovod import Horovod
from toolkit.images.blocks.nccl_tests import NcclTests
from toolkit.images.blocks.openmpi import OpenMpi
from toolkit.images.blocks.pip import Pip
from toolkit.images.blocks.python import Python
from toolkit.images.blocks.run import Run
from toolkit.images.blocks.shell import Shell
from toolkit.images.blocks.unpack import Unpack
from toolkit.images.recipe.block import Block

BLOCKS: dict[str, type[Block]] = {
    "apt": Apt,
    "copy": Copy,
    "env": Env,
    "horovod": Horovod,
    "nccl-tests": NcclTests,
    "openmpi": OpenMpi,
    "pip": Pip,
    "python": Python,
    "run": Run,
    "shell": Shell,
    "unpack": Unpack,
}
