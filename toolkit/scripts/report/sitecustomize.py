"""Record why a rank fails, for `toolkit explain`, and where it is, for `toolkit stacks`.

Python imports a module of this name when it starts. The job's script puts this directory first on
PYTHONPATH, inside the container only. Each process has a file beside this one. It begins with whose
it is, and gets a line for each error that ends the process, the stacks of its threads whenever
SIGURG asks for them, and a line with the number of ranks that it trains with. At the end the file
of a rank gets another name.
Nothing is printed, no exception is caught for good, and the exit code stays the same. The module of
the same name that the image or the user has is imported as well. It works on Python 3.6 and later.
"""

import _thread
import atexit
import faulthandler
import os
import sys
import threading
import time

TYPE_CHECKING = False  # importing typing would cost every start of Python some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_STDLIB = os.path.dirname(os.__file__) + os.sep
_SIGURG = 23  # of Linux: the module signal would cost every start a millisecond
_MOST_RECORDS, _MOST_ERRORS, _MOST_TEXT = 5, 6, 4000
# What tells which rank of which job this process is, as it was when the process started: scripts
# change some of it later. Beside these: RANK, and what each launcher or framework calls its own.
_NAMES = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_PROCID",
    "SLURM_NODEID",
    "SLURMD_NODENAME",
    "NPROC_PER_NODE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)
_environment = {
    name: value
    for name, value in os.environ.items()
    if name in _NAMES or (name.endswith("RANK") and len(value) < 10)
}
# What a rank has started has the same.
_rank = ".".join(value for name, value in sorted(_environment.items()) if name.endswith("RANK"))
_rank = _rank.replace(os.sep, "_") + "." + _environment.get("SLURM_PROCID", "")
_file = {}  # type: dict[str, Any]  # of this process


def _quiet(function: "Callable[..., None]") -> "Callable[..., None]":
    """Return a function that does nothing where it would raise.

    A report must never change how a program ends.
    """

    def call(*arguments: "Any", **named: "Any") -> None:
        try:
            function(*arguments, **named)
        except BaseException:
            pass

    return call


# The file of this process.


def _begin(process: str, index: "Any", is_rank: bool) -> None:
    """Begin the file of this process with what tells whose it is.

    Args:
        process: name of a process of multiprocessing; empty for any other.
        index: number of a process that torch.multiprocessing.spawn has started on its node.
        is_rank: it is the process of a rank, and not one that a rank has started.
    """
    _end()
    host, pid, now = _environment.get("SLURMD_NODENAME") or os.uname()[1], os.getpid(), time.time()
    facts = {"host": host, "pid": pid, "parent": os.getppid(), "time": int(now * 1e9)}  # type: dict[str, Any]
    facts.update(main="0x%016x" % _thread.get_ident(), process=process, index=index)
    facts.update(program=_file.get("program", ""), is_rank=int(is_rank))
    facts.update(("env." + name, value) for name, value in _environment.items())
    lines = ["%s=%s\n" % (name, str(facts[name])[:500].replace("\n", " ")) for name in facts]
    begin = os.path.join(_HERE, host.replace(os.sep, "_") + "-")
    path = "%s%d-%d.process" % (begin, pid, facts["time"])
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    os.write(descriptor, ("".join(lines) + "\n").encode("utf-8", "replace"))
    size = os.fstat(descriptor).st_size
    rank = "%s%s-%s-%s" % (begin, _environment.get("SLURM_JOB_ID"), _rank, index)
    _file.update(path=path, rank=rank, pid=pid, size=size, is_rank=is_rank, records=0)
    _lead_stacks_to(descriptor)


def _lead_stacks_to(descriptor: int) -> None:
    """Have SIGURG write to another file from now on, unless the program has closed the present one.

    A handler of the program's own, or its own file for faulthandler, has taken the place of this
    one, and keeps it.
    """
    if os.path.samestat(os.fstat(_file["descriptor"]), _file["status"]):
        os.dup2(descriptor, _file["descriptor"], False)
        _file["status"] = os.fstat(descriptor)
    os.close(descriptor)


def _append(line: str) -> None:
    with open(_file["path"], "ab", 0) as file:
        file.write((line + "\n").encode("utf-8", "replace"))


@_quiet
def _end() -> None:
    """Give the file of a rank, or one with something in it, its last name; remove any other.

    A shell script may start Python often: of the ends without a word the last one stays.
    """
    if _file.get("pid") != os.getpid():
        return
    is_bare = os.stat(_file["path"]).st_size == _file["size"]
    if is_bare and not (_file["is_rank"] and "SLURM_ARRAY_TASK_ID" not in _environment):
        os.unlink(_file["path"])
        return
    path = "%s.ended" % (_file["rank"] if is_bare else os.path.splitext(_file["path"])[0])
    os.rename(_file["path"], path)
    _file["path"] = path


# Errors.


def _is_own(file: str) -> bool:
    """Return whether a file is the user's: not of the standard library or an installed package."""
    packaged = "site-packages" + os.sep in file or "dist-packages" + os.sep in file
    return not (packaged or file.startswith((_STDLIB, _HERE + os.sep, "<frozen")))


def _text(error: "Any") -> str:
    """Return the message of an error; the code of an exit is none."""
    try:
        is_code = isinstance(error, SystemExit) and isinstance(error.code, int)
        text = "" if is_code else str(error)
    except Exception:
        return ""
    cut = text[: _MOST_TEXT * 3 // 4] + " [...] " + text[-_MOST_TEXT // 4 :]
    return text if len(text) <= _MOST_TEXT else cut


def _described(error: "BaseException", frames: "list[tuple[Any, int]]") -> "dict[str, Any]":
    """Describe an error: its message, the innermost file, the user's last frame.

    If the handler of a signal has raised it, the name of the signal is added.
    """
    import linecache
    import signal

    handlers = {}
    for number in range(1, signal.NSIG):
        handlers[getattr(signal.getsignal(number), "__code__", None)] = number
    codes = [frame.f_code for frame, _ in frames]
    caught = [signal.Signals(handlers[code]).name for code in codes if code in handlers]
    values = {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": _text(error),
        "inner": codes[-1].co_filename if codes else "",
        "signal": "".join(caught[:1]),
        "line": 0,
    }  # type: dict[str, Any]
    for frame, line in frames:
        code = frame.f_code
        if _is_own(code.co_filename):
            values.update(file=code.co_filename, line=line or 0, function=code.co_name)
    values["source"] = linecache.getline(values.get("file", ""), values["line"]).strip()[:500]
    return values


@_quiet
def _record(kind: str, error: "Any", stack: "Any" = None, thread: str = "") -> None:
    """Record an error and those that led to it, unless this process has recorded enough.

    Nothing is imported after Ctrl-C: it would change the exit code that Python then has.

    Args:
        kind: ``exception``, ``exit``, ``child`` or ``thread``.
        error: the last error.
        stack: the frame in which it was raised; None: its traceback has it.
        thread: name of the thread.
    """
    identity = (id(error), type(error))  # the error itself would keep all that its frames hold
    if error is None or isinstance(error, KeyboardInterrupt) or identity == _file.get("error"):
        return
    import json
    import traceback

    if kind in ("exception", "exit"):  # which ends the process, and may come here again
        _file["error"] = identity
    code = None
    chain = []  # type: list[dict[str, Any]]
    if isinstance(error, SystemExit):
        code = error.code & 0xFF if isinstance(error.code, int) else 1
    frames = list(traceback.walk_stack(stack))[::-1] if stack else None
    while error is not None and len(chain) < _MOST_ERRORS:
        frames = frames or list(traceback.walk_tb(error.__traceback__))
        several = getattr(error, "exceptions", None)  # of an ExceptionGroup
        cause = error.__cause__ or (several[0] if isinstance(several, tuple) else None)
        chain.append(_described(error, frames))
        error, frames = cause or (None if error.__suppress_context__ else error.__context__), None
    if _file.get("pid") != os.getpid():  # a forked process
        _begin("", "", is_rank=False)
    _file["records"] += 1
    if _file["records"] <= _MOST_RECORDS:
        record = {"kind": kind, "time_ns": int(time.time() * 1e9), "code": code, "chain": chain}
        _append(json.dumps(dict(record, thread=thread), ensure_ascii=False))


def _watch_errors() -> None:
    """Record uncaught errors before they are printed, those in threads as well."""
    show = sys.excepthook

    def hook(kind: "type", error: "BaseException", traceback: "Any") -> None:
        _record("exception", error)
        show(kind, error, traceback)

    sys.excepthook = hook
    show_of_thread = getattr(threading, "excepthook", None)  # since Python 3.8

    def hook_of_thread(arguments: "Any") -> None:
        if not isinstance(arguments.exc_value, SystemExit):
            name = getattr(arguments.thread, "name", "")
            _record("thread", arguments.exc_value, thread=str(name)[:200])
        show_of_thread(arguments)  # type: ignore[misc]

    if show_of_thread is not None:
        threading.excepthook = hook_of_thread


def _watch_exits() -> None:
    """Record exits with an error: a rank of MPI waits then for the others, which wait for it."""
    leave = sys.exit

    def exit(*status: "Any") -> None:
        """Exit the interpreter by raising SystemExit(status)."""
        try:
            leave(*status)
        except SystemExit as error:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and error.code is not None and error.code != 0:
                _record("exit", error, stack=sys._getframe(1))
            raise

    sys.exit = exit  # type: ignore[assignment]


@_quiet
def _watch_children() -> None:
    """Record the errors that end processes of multiprocessing, which prints them by itself."""
    module = sys.modules.get("multiprocessing.process")  # type: Any
    if module is None or hasattr(module.BaseProcess, "_toolkit_recorded"):
        return
    bootstrap = module.BaseProcess._bootstrap  # type: Callable[..., int]

    def recorded(self: "Any", *arguments: "Any", **named: "Any") -> int:
        run, values = self.run, list(getattr(self, "_args", ()))
        target = getattr(getattr(self, "_target", None), "__module__", None) or ""
        is_rank = target.startswith("torch.multiprocessing") and len(values) > 1

        def run_recorded() -> None:
            try:
                run()
            except BaseException as error:
                if not isinstance(error, SystemExit) or error.code:
                    _record("child", error)
                raise

        self.run = run_recorded
        _quiet(_begin)(self.name, values[1] if is_rank else "", is_rank=is_rank)
        try:
            return bootstrap(self, *arguments, **named)
        finally:
            _end()

    module.BaseProcess._toolkit_recorded = True
    module.BaseProcess._bootstrap = recorded


@_quiet
def _after_fork() -> None:
    """Have a forked process write nothing to the file of its parent."""
    _watch_children()
    _lead_stacks_to(os.open(os.devnull, os.O_WRONLY))


# How many ranks this process trains with.

# A module, the class in it, and the functions that join a world, tell its size, and the rank.
_WORLDS = {
    "torch.distributed.distributed_c10d": ("", "init_process_group", "get_world_size", "get_rank"),
    "horovod.common.basics": ("HorovodBasics", "init", "size", "rank"),
}


@_quiet
def _note(size: "Callable[..., int]", rank: "Callable[..., int]", *arguments: "Any") -> None:
    if _file.get("pid") == os.getpid():
        _append("world=%d rank=%d" % (size(*arguments), rank(*arguments)))


@_quiet
def _wrap(module: "Any") -> None:
    """Have the function of a module that joins a world note its size afterwards."""
    import functools

    kind, joins, size, rank = _WORLDS[module.__name__]
    owner = getattr(module, kind) if kind else module
    join = getattr(owner, joins)

    @functools.wraps(join)
    def joined(*arguments: "Any", **named: "Any") -> "Any":
        value = join(*arguments, **named)
        _note(getattr(owner, size), getattr(owner, rank), *(arguments[:1] if kind else ()))
        return value

    setattr(owner, joins, joined)


# What is called with a module once it is loaded. The module of `toolkit bench` adds to it.
PATCHES = {name: [_wrap] for name in _WORLDS}  # type: dict[str, list[Callable[[Any], None]]]


def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
    """Return the spec of a module of ``PATCHES``, which is patched when it is loaded.

    This module is a finder.
    """
    if name not in PATCHES:
        return None
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name, path, target)  # type: Any
    if spec and spec.loader:
        execute = spec.loader.exec_module

        def exec_module(module: "Any") -> None:
            execute(module)
            for patch in PATCHES.get(module.__name__, ()):  # a loader may be that of others, too
                patch(module)

        spec.loader.exec_module = exec_module
    return spec


@_quiet
def _note_mpi() -> None:
    """Note the size of MPI's world, which is known as long as MPI is not finalized."""
    module = sys.modules.get("mpi4py.MPI")  # type: Any
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        _note(module.COMM_WORLD.Get_size, module.COMM_WORLD.Get_rank)


def _at_exit() -> None:
    _record("exception", getattr(sys, "last_value", None))  # another program has taken the hook
    _note_mpi()
    _end()


@_quiet
def _start() -> None:
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read(65536).decode("utf-8", "replace").split("\0")[1:]
    if "multiprocessing.resource_tracker" in " ".join(words):
        return
    _file["descriptor"] = os.open(os.devnull, os.O_WRONLY)
    _file["status"] = os.fstat(_file["descriptor"])
    faulthandler.register(_SIGURG, file=_file["descriptor"], all_threads=True)
    atexit.register(_at_exit)
    _watch_errors()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
    sys.meta_path.insert(0, sys.modules[__name__])  # type: ignore[arg-type, unused-ignore]
    if "--multiprocessing-fork" in words:
        import multiprocessing.process  # noqa: F401

        _watch_children()  # which begins the file
        return
    _watch_exits()
    programs = [word for word in words if word[:1] != "-" or word in ("-c", "-")]
    _file["program"] = "".join(programs[:1])  # of -m a module
    is_rank = os.environ.get("_TOOLKIT_STARTER") != _rank
    os.environ["_TOOLKIT_STARTER"] = _rank
    _begin("", "", is_rank=is_rank)


def _import_next() -> None:
    """Import the module of this name that Python would have found without this one."""
    ours = sys.modules[__name__]
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    del sys.modules[__name__]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


_start()
if "PYTHONFAULTHANDLER" not in os.environ:
    _quiet(faulthandler.enable)()
if "TOOLKIT_SCALE" in os.environ or "TOOLKIT_MEMORY" in os.environ:
    _quiet(__import__)("toolkit_bench")  # type: ignore[arg-type]  # it lies beside this module
if __name__ == "sitecustomize":
    _import_next()
