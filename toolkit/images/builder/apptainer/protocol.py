"""The files by which a build tells its programs what to do, and the messages by which they answer.

A message is a line that begins with the build's token, a random word. The programs share their
output with the steps and checks that they run, none of which can know the token: whatever these
print, and whatever code they exit with, is no message.
"""

from __future__ import annotations

from toolkit.images.host.host_mounts import Bind
from toolkit.model.base import Model

WHOLE = ".whole"  # is added to the name of a complete result
# Messages; a name follows the first.
STEP_BEGINS, PACKED = "step ", "packed"


class Lower(Model, frozen=True, kw_only=True):
    """An existing file system: a squashfs in a file from ``offset`` on, or a directory (None)."""

    path: str
    offset: int | None = None


class Task(Model, frozen=True, kw_only=True):
    """One step.

    Attributes:
        script: The path of its shell script, as the step sees it.
        lowers: What it runs on, the highest first: names in the work directory.
        upper: What it changes: a name in the work directory.
        layer: The file for its packed changes; ``WHOLE`` is added to its name when it is complete.
            Empty if they are not packed.
        product_source: A directory of the image that is copied when the step has run.
        products: The directory of the machine for the copy; an empty file beside it, with ``WHOLE``
            added to its name, marks it as complete.
        seed: The layer that the same script made in an earlier build: a name in the work directory;
            empty: none.
        seed_below: The number of lowest ``lowers`` that it was made on.
    """

    name: str
    detail: str
    script: str
    lowers: tuple[str, ...]
    upper: str
    layer: str = ""
    product_source: str = ""
    products: str = ""
    binds: tuple[Bind, ...] = ()
    seed: str = ""
    seed_below: int = 0


class SandboxTasks(Model, frozen=True, kw_only=True):
    """The tasks for one run of the sandbox; none: it tests whether steps can be confined here.

    Attributes:
        directory: The empty directory in which it works.
        token: Begins its messages.
        lowers: By their place they are ``l0``, ``l1``, ... in the directory.
        users: The arguments of ``newuidmap`` that follow the process; empty for root, who needs no
            user namespace.
        groups: The arguments of ``newgidmap``.
        binds: What every step sees of the machine.
        environment: The environment of every step.
        byte_code: The path, in the image, of a script that makes byte code reproducible; empty to
            leave byte code unchanged.
        changed: The file, on the host, that tells this script which byte code a step made.
        passing: A directory, in the image, with a `compileall` that passes over sources.
        skipped: The file, on the host, that tells it which ones.
        pack: The program that packs.
        packing: Its options after source and destination.
    """

    directory: str
    token: str = ""
    lowers: tuple[Lower, ...] = ()
    tasks: tuple[Task, ...] = ()
    users: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    binds: tuple[Bind, ...] = ()
    environment: dict[str, str] = {}
    byte_code: str = ""
    changed: str = ""
    passing: str = ""
    skipped: str = ""
    pack: tuple[str, ...] = ()
    packing: tuple[str, ...] = ()


class Fence(Model, frozen=True, kw_only=True):
    """The mounts of the namespace in which Apptainer runs.

    Attributes:
        users: As of ``SandboxTasks``.
        groups: As of ``SandboxTasks``.
        replaced: Directories that every user may write to, such as ``/tmp``, and the empty ones
            that Apptainer has in their place.
        readable: What Apptainer reads, wherever it is; it sees no other files of ``replaced``.
        writable: Directories that it may write to; everything else is read-only.
    """

    users: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    replaced: dict[str, str]
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...]
