"""Record why a rank fails, for `toolkit explain`, and where it is, for `toolkit stacks`.

Python imports a module of this name when it starts. The job's script puts this directory first on
PYTHONPATH, inside the container only. Each failure becomes a small JSON file beside this one, and
SIGURG makes each process write its stacks to a file of its own.
Nothing is printed, no exception is caught for good, and the exit code stays the same. The module of
the same name that the image or the user has is imported as well. It works on Python 3.6 and later.
"""

import os
import sys

TYPE_CHECKING = False  # importing typing would cost every start of Python some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
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
_ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name in _NAMES or (name.endswith("RANK") and len(value) < 10)
}


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


def _load(file: str) -> "Any":
    """Return a module beside this one, whose name no other module has."""
    name = "_toolkit_" + file
    if name not in sys.modules:
        from importlib.machinery import SourceFileLoader

        module = type(sys)(name)
        path = os.path.join(_HERE, file + ".py")
        module.__file__ = path
        SourceFileLoader(name, path).exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


@_quiet
def _record(function: str, *arguments: "Any", **named: "Any") -> None:
    """Call a function of the module that describes failures."""
    if any(isinstance(argument, KeyboardInterrupt) for argument in arguments):
        # The user stopped it; and imports here would change the exit code that Python then has.
        return
    module = _load("failure")
    module.ENVIRONMENT = _ENVIRONMENT
    getattr(module, function)(*arguments, **named)


@_quiet
def _record_exit(status: "Any", frame: "Any") -> None:
    if not (status is None or status == 0):
        _record("record_exit", status, frame)


def _watch_exits() -> None:
    leave = sys.exit

    def exit(*status: "Any") -> None:
        """Exit the interpreter by raising SystemExit(status)."""
        _record_exit(status[0] if status else None, sys._getframe(1))
        leave(*status)

    sys.exit = exit  # type: ignore[assignment]
    import builtins

    quitter = type(getattr(builtins, "exit", None))  # type: Any
    if quitter.__name__ != "Quitter":
        return
    call = quitter.__call__

    def quit_call(self: "Any", code: "Any" = None) -> None:
        _record_exit(code, sys._getframe(1))
        call(self, code)

    quitter.__call__ = quit_call


def _watch_errors() -> None:
    """Record uncaught errors before they are printed.

    If another program has taken the hook, they are recorded at the end.
    """
    import atexit

    show = sys.excepthook
    done = []

    def hook(kind: "type", error: "BaseException", traceback: "Any") -> None:
        done.append(os.getpid())
        _record("record", "exception", error)
        show(kind, error, traceback)

    sys.excepthook = hook

    def at_exit() -> None:
        error = getattr(sys, "last_value", None)
        if os.getpid() not in done and isinstance(error, BaseException):
            _record("record", "exception", error)

    atexit.register(at_exit)


def _watch_raised_exits() -> None:
    """Record ``raise SystemExit("text")``, for which Python calls no hook.

    The text is written by Python itself: below that call there is no frame.
    """
    write = sys.stderr.write

    def write_recorded(text: str) -> int:
        if sys._getframe().f_back is None:
            _record("record_text", text)
        return write(text)

    sys.stderr.write = write_recorded  # type: ignore[method-assign]


def _watch_threads() -> None:
    import threading

    show = getattr(threading, "excepthook", None)  # since Python 3.8
    if show is None:
        return

    def hook(arguments: "Any") -> None:
        if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
            _record(
                "record",
                "thread",
                arguments.exc_value,
                thread=str(getattr(arguments.thread, "name", ""))[:200],
            )
        show(arguments)

    threading.excepthook = hook


def _watch_destructors() -> None:
    show = getattr(sys, "unraisablehook", None)  # since Python 3.8
    if show is None:
        return

    def hook(arguments: "Any") -> None:
        if arguments.exc_value is not None:
            name = getattr(arguments.object, "__qualname__", "")
            _record("record", "destructor", arguments.exc_value, thread=str(name)[:200])
        show(arguments)

    sys.unraisablehook = hook


def _watch_children() -> None:
    """Record errors that end a process of multiprocessing, which prints them by itself."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_quiet(_patch_processes))
    with open("/proc/self/cmdline", "rb") as file:
        if b"--multiprocessing-fork" in file.read(65536):
            import multiprocessing.process  # noqa: F401

            _patch_processes()


def _patch_processes() -> None:
    module = sys.modules.get("multiprocessing.process")
    if module is None or hasattr(module.BaseProcess, "_toolkit_recorded"):
        return
    bootstrap = module.BaseProcess._bootstrap  # type: Callable[..., int]

    def recorded(self: "Any", *arguments: "Any", **named: "Any") -> int:
        run = self.run

        def run_recorded() -> None:
            try:
                run()
            except BaseException as error:
                _record("record_child", error)
                raise

        self.run = run_recorded
        target = getattr(self, "_target", None)
        values = list(getattr(self, "_args", ()))
        is_rank = str(getattr(target, "__module__", "")).startswith("torch.multiprocessing")
        stacks = sys.modules.get("_toolkit_stacks")  # type: Any
        if stacks is not None:
            stacks.begin(self.name, values[1] if is_rank and len(values) > 1 else "")
        try:
            return bootstrap(self, *arguments, **named)
        finally:
            if stacks is not None:
                stacks.end(is_rank)

    module.BaseProcess._toolkit_recorded = True
    module.BaseProcess._bootstrap = recorded


def _watch_crashes() -> None:
    if "PYTHONFAULTHANDLER" not in os.environ:
        import faulthandler

        faulthandler.enable()


def _watch_hangs() -> None:
    """Have SIGURG write the stacks of this process, and note how many ranks it trains with."""
    if os.environ.get("SLURM_JOB_ID"):
        _load("stacks").watch(_ENVIRONMENT)


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


for _watch in (
    _watch_errors,
    _watch_exits,
    _watch_raised_exits,
    _watch_threads,
    _watch_destructors,
    _watch_children,
    _watch_crashes,
    _watch_hangs,
):
    _quiet(_watch)()
if __name__ == "sitecustomize":
    _import_next()
