"""What the sandbox is told to do."""

from __future__ import annotations

from toolkit.model.base import Model

WHOLE = ".whole"  # is added to the name of what has been made to its end
PACKED = "toolkit: a layer is packed"  # what the sandbox then says
CANNOT = 124  # exit code of the sandbox: this machine does not let this user have what it needs


class Lower(Model, frozen=True, kw_only=True):
    """A file system that is there already: a squashfs in a file, from ``offset`` on, or a directory where that is None."""

    path: str
    offset: int | None = None


class Bind(Model, frozen=True, kw_only=True):
    """A file or directory of the machine, and where a step sees it."""

    source: str
    target: str
    writable: bool = False


class Task(Model, frozen=True, kw_only=True):
    """One step.

    Attributes:
        script: the path of its shell script, as the step sees it.
        lowers: on what it runs, the highest first: names in the work directory.
        upper: what it changes: a name in the work directory.
        layer: the file that its changes are packed into; ``WHOLE`` is added to its name when that is done. Empty: they are not packed.
        inside, products: a directory of the image that is copied to one of the machine when the step has run; an empty file beside it,
            called as it is and ``WHOLE``, says that it was.
    """

    name: str
    detail: str
    script: str
    lowers: tuple[str, ...]
    upper: str
    layer: str = ""
    inside: str = ""
    products: str = ""
    binds: tuple[Bind, ...] = ()


class Work(Model, frozen=True, kw_only=True):
    """Everything for one run of the sandbox.

    Attributes:
        directory: where it works, empty.
        lowers: by their place they are ``l0``, ``l1``, ... in it.
        repack: a file that ``l0`` is packed into, as it is.
        users, groups: arguments of ``newuidmap`` and ``newgidmap`` behind the process; empty for root, who needs no user namespace.
        binds: what every step sees of the machine.
        environment: of every step.
        byte_code: the path, in the image, of a script that makes byte code the same everywhere; empty: nothing is done about it.
        changed: the file, on the host, that tells this script which byte code a step made.
        pack, packing: the program that packs, and its options behind source and destination.
    """

    directory: str
    lowers: tuple[Lower, ...] = ()
    tasks: tuple[Task, ...] = ()
    repack: str = ""
    users: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    binds: tuple[Bind, ...] = ()
    environment: dict[str, str] = {}
    byte_code: str = ""
    changed: str = ""
    pack: tuple[str, ...] = ()
    packing: tuple[str, ...] = ()


class Fence(Model, frozen=True, kw_only=True):
    """Where Apptainer runs.

    Attributes:
        users, groups: as of ``Work``.
        replaced: directories that everybody may write to, such as ``/tmp``, and the empty ones that it has in their place.
        readable: what it has to read, wherever that is; of what is replaced it sees nothing else.
        writable: directories that it may write to; everything else is read-only.
    """

    users: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    replaced: dict[str, str]
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...]
