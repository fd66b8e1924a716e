"""The blocks, which are the kinds of steps. A new block is a class and a line here."""

from __future__ import annotations

from toolkit.images.recipe.block import Block
from toolkit.images.recipe.blocks.commands import Env, Run, Shell
from toolkit.images.recipe.blocks.debian import Apt, OpenMpi, Python
from toolkit.images.recipe.blocks.files import Copy, Unpack
from toolkit.images.recipe.blocks.horovod import Horovod
from toolkit.images.recipe.blocks.nccl_tests import NcclTests
from toolkit.images.recipe.blocks.pip import Pip

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
