"""SIF images and the squashfs within: parse and write their headers, and graft layers.

README.md beside this file explains both formats and the algorithm. The package works on bytes that
its callers read, and imports nothing of this project but itself.
"""

from __future__ import annotations


class SifError(ValueError):
    """The bytes are not a SIF, or the SIF is damaged; the message says why."""


class SquashfsError(SifError):
    """The bytes are not a squashfs, or not one that can be grafted; the message says why."""


# Options of mksquashfs for bases and layers: tables are uncompressed, which every reader allows, so
# that a reference into the base's tables keeps its meaning.
UNCOMPRESSED_TABLES = ("-noI", "-noX")
BLOCK_SIZE = 131072  # bytes of a block of data: the same for everything that is grafted together
