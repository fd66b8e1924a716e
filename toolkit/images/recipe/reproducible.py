"""Make two builds from the same packages equal, to the last byte. Pure.

Steps get the same environment everywhere, and their results are made independent of when, where and
how fast they ran:

- Times: what a step made or changed gets the time ``EPOCH``. Files of packages keep their times.
- Byte code: ``marshal`` marks an object as shared by how often the whole process refers to it, so
  the same source gives other bytes in another process (python/cpython#78274). It is written again
  without such marks, which makes it 0.4 % of an image larger and as fast.
- Logs and caches that record when something was installed are dropped: ``is_dropped``.

Other effects of time, random numbers or the number of cores on a step are the step's own.
"""

from __future__ import annotations

import re

EPOCH = 315619200  # 1980-01-02: a wheel cannot hold an earlier time
# Python orders sets by their hashes and writes byte code of imported modules; compilers and
# archivers write the time.
ENVIRONMENT = {
    "SOURCE_DATE_EPOCH": str(EPOCH),
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}

_DROPPED = re.compile(
    r"var/log/(?:apt/.*|(?:alternatives|bootstrap|dpkg|fontconfig)\.log"
    r"|[bw]tmp|faillog|lastlog|tallylog)"
    r"|var/cache/(?:ldconfig/aux-cache|apt/[^/]*\.bin|debconf/[^/]*-old)"
    r"|var/lib/(?:dpkg/[^/]*-old|apt/lists/.*)"
)

# Reads names of byte code from a file, each followed by a zero byte. Version 2 of the format has no
# marks of shared objects; what it cannot express (constant slices, since Python 3.14) is left.
BYTE_CODE = """\
import importlib.util, marshal, sys
with open(sys.argv[1], "rb") as stream:
    names = stream.read().split(b"\\0")[:-1]
for name in names:
    with open(name, "rb") as stream:
        head, code = stream.read(16), stream.read()
    if head[:4] != importlib.util.MAGIC_NUMBER or not code[:1] > b"\\x7f":
        continue
    try:
        code = marshal.dumps(marshal.loads(code), 2)
    except (ValueError, EOFError, TypeError):
        continue
    with open(name, "wb") as stream:
        stream.write(head + code)
"""


def is_dropped(path: str) -> bool:
    """Return whether a step's file only records the installation.

    Args:
        path: The file's path, relative to the image's root.
    """
    return _DROPPED.fullmatch(path) is not None
