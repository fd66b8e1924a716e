"""Write the stacks of a process when SIGURG asks for them, and note how many ranks train together.

``sitecustomize`` loads this module when Python starts in a job. It works on Python 3.6 and later.
"""

import _thread
import atexit
import faulthandler
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _quiet(function: "Callable[..., None]") -> "Callable[..., None]":
    def call(*arguments: "Any") -> None:
        try:
            function(*arguments)
        except BaseException:
            pass

    return call


# What of Python has no stack that anybody asks for.
_SIGURG = 23  # of Linux: the module signal would cost every start a millisecond
_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.semaphore_tracker")
# Programs that import one of these are ranks, or start ranks.
_FRAMEWORKS = ("torch.distributed", "horovod", "mpi4py", "tensorflow", "jax", "ray")
_stacks = {}  # type: dict[str, Any]  # of this process: descriptor, inode, path, pid, size


def watch(environment: "dict[str, str]") -> None:
    """Have SIGURG write the stacks of all threads to a file beside this one.

    A program that does not know the signal ignores it, and a handler of the program's own, or its
    own file for faulthandler, takes the place of this one.
    """
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read(4096)
    if any(helper in command for helper in _HELPERS):
        return
    words = command.decode("utf-8", "replace").split("\0")[1:]
    while words and words[0].startswith("-") and words[0] not in ("-c", "-"):
        words.pop(0)  # of -m the module follows
    _stacks.update(program=words[0] if words else "", environment=environment)
    begin("", "")
    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type, unused-ignore]
    faulthandler.register(_SIGURG, file=_stacks["descriptor"], all_threads=True)
    atexit.register(_at_exit)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_quiet(_leave_stacks))


def _at_exit() -> None:
    _note_mpi()
    end(any(name in sys.modules for name in _FRAMEWORKS))


def _identity(descriptor: int) -> "tuple[int, int]":
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _exchange_stacks(descriptor: int) -> None:
    """Have the handler write to another file from now on, unless the program has closed its own."""
    if "descriptor" not in _stacks:
        _stacks["descriptor"] = descriptor
    elif _identity(_stacks["descriptor"]) == _stacks["identity"]:
        os.dup2(descriptor, _stacks["descriptor"], False)
        os.close(descriptor)
    else:
        os.close(descriptor)
        raise OSError("the file is closed")
    _stacks["identity"] = _identity(_stacks["descriptor"])


@_quiet
def begin(process: str, index: "Any") -> None:
    """Open the file of this process, which begins with what tells whose it is."""
    if "program" not in _stacks:
        return
    end(False)
    host = os.environ.get("SLURMD_NODENAME") or os.uname()[1]
    facts = [("host", host), ("pid", os.getpid()), ("parent", os.getppid())]  # type: list[tuple[str, Any]]
    facts += [("main", "0x%016x" % _thread.get_ident()), ("process", process), ("index", index)]
    facts += [("program", _stacks["program"]), ("time", int(time.time() * 1e9))]
    facts += [("env." + name, value) for name, value in _stacks["environment"].items()]
    lines = ["%s=%s\n" % (name, str(value)[:500].replace("\n", " ")) for name, value in facts]
    data = "".join(lines).encode("utf-8", "replace") + b"\n"
    for number in range(100):  # containers may count their processes alike
        name = "%s-%d-%d.stacks" % (host.replace(os.sep, "_"), os.getpid(), number)
        path = os.path.join(_HERE, name)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        os.write(descriptor, data)
        _stacks.update(pid=os.getpid(), path=path, size=len(data), is_rank=False)
        _exchange_stacks(descriptor)
        return


@_quiet
def _leave_stacks() -> None:
    """Have a forked process write nothing to the file of its parent."""
    _exchange_stacks(os.open(os.devnull, os.O_WRONLY))


@_quiet
def end(is_rank: bool) -> None:
    """Note the end of a rank in its file; remove the file of another process that was not asked."""
    descriptor = _stacks.get("descriptor", -1)
    if _stacks.get("pid") != os.getpid() or _identity(descriptor) != _stacks["identity"]:
        return
    _stacks["pid"] = 0
    if is_rank or _stacks["is_rank"]:
        os.write(descriptor, b"ended\n")
    elif os.fstat(descriptor).st_size == _stacks["size"]:
        os.unlink(_stacks["path"])


# A module, the class in it ("" for none), and the functions that join a world and tell its size.
_WORLDS = {
    "torch.distributed.distributed_c10d": ("", "init_process_group", "get_world_size"),
    "horovod.common.basics": ("HorovodBasics", "init", "size"),
}


@_quiet
def _note(size: "Callable[..., int]", *arguments: "Any") -> None:
    """Note how many ranks this process trains with."""
    number = int(size(*arguments))
    if _stacks["pid"] == os.getpid() and _identity(_stacks["descriptor"]) == _stacks["identity"]:
        os.write(_stacks["descriptor"], b"world=%d\n" % number)
        _stacks["is_rank"] = True


@_quiet
def _note_mpi() -> None:
    """Note the size of MPI's world, which is known as long as MPI is not finalized."""
    module = sys.modules.get("mpi4py.MPI")  # type: Any
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        _note(module.COMM_WORLD.Get_size)


@_quiet
def _wrap(module: "Any") -> None:
    """Have the function of a module that joins a world note its size afterwards."""
    kind, joins, counts = _WORLDS[module.__name__]
    owner = getattr(module, kind) if kind else module
    join = getattr(owner, joins)

    def joined(*arguments: "Any", **named: "Any") -> "Any":
        value = join(*arguments, **named)
        _note(getattr(owner, counts), *(arguments[:1] if kind else ()))
        return value

    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        setattr(joined, name, getattr(join, name))
    joined.__wrapped__ = join  # type: ignore[attr-defined]
    setattr(owner, joins, joined)


class _Finder:
    """A finder of two modules, which others find, that wraps functions when they are loaded."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec that the other finders find, or None."""
        if name not in _WORLDS:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not _Finder else None
            if spec is not None:
                _load_and_wrap(spec)
                return spec
        return None


@_quiet
def _load_and_wrap(spec: "Any") -> None:
    loader = spec.loader
    execute = loader.exec_module

    def exec_module(module: "Any") -> None:
        del loader.exec_module  # the one of the class again
        execute(module)
        _wrap(module)

    loader.exec_module = exec_module
