"""The blocks, which are the kinds of steps. A new block is a class and a line here."""

from __future__ import annotations

from toolkit.images.recipe.block import Block
from toolkit.images.recipe.blocks.apt import Apt
from toolkit.images.recipe.blocks.copy import Copy
from toolkit.images.recipe.blocks.env import Env
from toolkit.images.recipe.blocks.horovod import Horovod
from toolkit.images.recipe.blocks.nccl_tests import NcclTests
from toolkit.images.recipe.blocks.openmpi import OpenMpi
from toolkit.images.recipe.blocks.pip import Pip
from toolkit.images.recipe.blocks.python import Python
from toolkit.images.recipe.blocks.run import Run
from toolkit.images.recipe.blocks.shell import Shell
from toolkit.images.recipe.blocks.unpack import Unpack

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
