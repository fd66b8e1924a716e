"""Graft layers onto a squashfs without packing it again.

How and why is in README.md of the package ``sif``. The layout is that of ``fs/squashfs`` in Linux,
version 4.0. The tables of inodes and directories must be uncompressed, which every reader allows,
so that a reference into the base's tables keeps its meaning: pack bases and layers by
``mksquashfs`` with ``UNCOMPRESSED_TABLES`` and ``BLOCK_SIZE``.
"""

from __future__ import annotations

UNCOMPRESSED_TABLES = ("-noI", "-noX")
BLOCK_SIZE = 131072  # bytes of a block of data: the same for everything that is grafted together
