"""Run Apptainer so that it cannot write to the host's files.

``python -m toolkit.images.builder.apptainer.fence FENCE -- PROGRAM ARGUMENT...``

Apptainer follows the symbolic links of a base. If ``/etc/hosts`` of a base leads to a file of the
host, Apptainer makes that file, or gives it the mode 0644 (seen with 1.4.5, ``Bootstrap:
localimage``). So it runs in a mount namespace in which everything but its own directories is
read-only. For an ordinary user that is a user namespace, whose root needs no ``--fakeroot``. It
insists on writing to ``/tmp``, and its programs to ``/dev/shm``, where semaphores are: it gets
other directories in their place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from toolkit.images.builder.apptainer.protocol import Fence
from toolkit.images.host.kernel import CannotError, enter, make_read_only, replace
from toolkit.model.base import from_json


def main(arguments: Sequence[str]) -> NoReturn:
    """Become the program behind the fence of a file; exit with 1 if that is impossible."""
    fence = from_json(Path(arguments[0]).read_text(encoding="utf-8"), Fence)
    command = list(arguments[2:])
    try:
        enter(fence.users, fence.groups)
        for directory, empty in fence.replaced.items():
            replace(directory, empty, (*fence.writable, *fence.readable))
        make_read_only((*fence.writable, *fence.replaced))
    except (CannotError, OSError) as error:
        sys.exit(f"no fence: {error}")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
