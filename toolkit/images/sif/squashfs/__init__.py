"""Putting what a step changed onto a squashfs without packing that again: a "graft".

A squashfs is data first and tables last: inodes, directories, fragments, ids, extended attributes.
So a layer can be put on it by appending the layer's data as they are, and writing the tables anew,
in which only the directories on the way to a change are new ones. What comes out is one ordinary
squashfs: it starts as fast as one that was packed at once, by the kernel and by FUSE, for root and
for a user; what was deleted is in no directory any more; and Apptainer, ``unsquashfs`` and
everybody else need not know how it was made.

Measured against the alternatives (Apptainer 1.4, ``exec true``, beside the same image packed flat):

- Layers as overlay partitions of the SIF: 1.11 of the flat start with one layer, 1.56 with five, 2.0 with eight (root); 1.22, 2.1, 2.7 for
  a user, who gets a FUSE process for each. Even one is over the bar of 1.1; and what takes only the first partition of a SIF
  (``Bootstrap: localimage``) would lose the layers.
- ``mksquashfs`` in its appending mode cannot replace or delete, nor add to a directory that is there.
- Packing everything again is what this is to avoid: the time grows with the base.
- The engine's layer cache rebuilds fast, but to become a SIF everything is unpacked and packed again.

Pure: works on bytes that others have read. The layout is that of ``fs/squashfs`` in Linux, version
4.0. Tables of inodes and directories are kept uncompressed, which every reader allows for: so a
reference into the base's tables stays what it is. That asks for bases and layers to be packed by
``mksquashfs`` with ``UNCOMPRESSED_TABLES``.
"""

from __future__ import annotations

UNCOMPRESSED_TABLES = ("-noI", "-noX")
BLOCK_SIZE = 131072  # of data: the same for all that is grafted together
