"""Record why a rank fails, for `toolkit explain`.

Python imports a module of this name when it starts. The job's script puts this directory first on
PYTHONPATH, inside the container only. Each failure becomes a small JSON file beside this one.
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
_STDLIB = os.path.dirname(os.__file__) + os.sep
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
_MOST_RECORDS, _MOST_TEXT, _MOST_ERRORS = 5, 4000, 6
_exits = []  # type: list[str]  # the messages of recorded exits
_written = {}  # type: dict[int, int]  # process id -> number of records: a forked process counts its own


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


def _is_own(path: str) -> bool:
    """Return whether a file is the user's.

    It is not if it belongs to the standard library or to an installed package.
    """
    packaged = "site-packages" + os.sep in path or "dist-packages" + os.sep in path
    return not (packaged or path == __file__ or path.startswith((_STDLIB, "<frozen")))


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= _MOST_TEXT
        else text[: _MOST_TEXT * 3 // 4] + " [...] " + text[-_MOST_TEXT // 4 :]
    )


def _text(error: "Any") -> str:
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return ""  # a code is no message
    try:
        return _cut(str(error))
    except Exception:
        return ""


def _handlers() -> "dict[Any, str]":
    """Return the code of the signal handlers in Python, with the names of their signals."""
    import signal

    codes = {}
    for number in range(1, signal.NSIG):
        try:
            code = getattr(signal.getsignal(number), "__code__", None)
            if code is not None:
                codes[code] = signal.Signals(number).name
        except (ValueError, OSError):
            continue
    return codes


def _frames(traceback: "Any") -> "list[tuple[Any, int]]":
    """Return the (code, line) pairs of a traceback, the outermost first."""
    pairs = []  # type: list[tuple[Any, int]]
    while traceback is not None:
        pairs.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return pairs


def _stack(frame: "Any") -> "list[tuple[Any, int]]":
    pairs = []
    while frame is not None:
        pairs.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return pairs[::-1]


def _places(frames: "list[tuple[Any, int]]") -> "dict[str, Any]":
    """Describe where an error was raised.

    That is the user's last frame, the innermost file, and the signal whose handler was running.
    """
    handlers = _handlers()
    description = {"signal": next((handlers[code] for code, _ in frames if code in handlers), "")}  # type: dict[str, Any]
    if frames:
        description["inner"] = frames[-1][0].co_filename[:500]
    for code, line in reversed(frames):
        if _is_own(code.co_filename):
            import linecache

            source = linecache.getline(code.co_filename, line).strip()[:200]
            description.update(
                file=code.co_filename[:500],
                line=line or 0,
                function=code.co_name[:200],
                source=source,
            )
            break
    return description


def _described(error: "BaseException") -> "dict[str, Any]":
    kind = type(error)
    description = {}  # type: dict[str, Any]
    description.update(
        type=kind.__name__[:200],
        module=str(getattr(kind, "__module__", ""))[:200],
        message=_text(error),
    )
    description.update(_places(_frames(error.__traceback__)))
    if isinstance(error, SyntaxError) and error.filename:
        description.update(
            file=str(error.filename)[:500],
            line=error.lineno or 0,
            source=str(error.text or "").strip()[:200],
            function="",
        )
    return description


def _errors(error: "Any") -> "list[dict[str, Any]]":
    """Describe an error and those that led to it, the last one first."""
    errors = []  # type: list[dict[str, Any]]
    visited = set()
    while error is not None and id(error) not in visited and len(errors) < _MOST_ERRORS:
        visited.add(id(error))
        errors.append(_described(error))
        several = getattr(error, "exceptions", None)  # of an ExceptionGroup
        if error.__cause__ is not None:
            errors[-1]["explicit"] = True
            error = error.__cause__
        elif isinstance(several, tuple) and several and isinstance(several[0], BaseException):
            errors[-1]["explicit"] = True
            error = several[0]
        else:
            error = None if error.__suppress_context__ else error.__context__
    return errors


def _group_rank() -> "int | None":
    """Return the rank that torch.distributed knows, for processes that a script starts."""
    try:
        group = sys.modules.get("torch.distributed")
        return int(group.get_rank()) if group is not None and group.is_initialized() else None
    except Exception:
        return None


def _process() -> "dict[str, Any]":
    """Describe a process of multiprocessing.

    It has a name, and a number if torch.multiprocessing.spawn has started it.
    """
    module = sys.modules.get("multiprocessing.process")
    process = module.current_process() if module is not None else None
    if process is None or process.name == "MainProcess":
        return {}
    target, values = getattr(process, "_target", None), list(getattr(process, "_args", ()))
    spawned = (
        getattr(target, "__module__", "").startswith("torch.multiprocessing") and len(values) > 1
    )
    return {
        "process": process.name[:200],
        "index": values[1] if spawned and isinstance(values[1], int) else None,
    }


def _write(kind: str, errors: "list[dict[str, Any]]", **more: "Any") -> None:
    """Write one record, unless this process has written enough."""
    import json
    import time

    pid = os.getpid()
    count = _written.get(pid, 0)
    if count >= _MOST_RECORDS:
        return
    _written[pid] = count + 1
    host = _ENVIRONMENT.get("SLURMD_NODENAME") or os.uname()[1]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    record = {
        "kind": kind,
        "time_ns": int(time.time() * 1e9),
        "host": host,
        "pid": pid,
        "errors": errors,
        "env": _ENVIRONMENT,
    }
    record.update(program=str(main or "")[:500], group_rank=_group_rank(), **_process())
    record.update(more)
    data = json.dumps(record, ensure_ascii=False).encode(
        "utf-8", "replace"
    )  # of a name there may be half a character
    for number in range(count, count + 100):  # containers may count their processes alike
        try:
            name = "%s-%d-%d.json" % (host.replace(os.sep, "_"), pid, number)
            file = os.open(os.path.join(_HERE, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        try:
            os.write(file, data)
        finally:
            os.close(file)
        return


@_quiet
def _record(kind: str, error: "BaseException", **more: "Any") -> None:
    if isinstance(error, KeyboardInterrupt):
        # The user stopped it; and imports here would change the exit code that Python then has.
        return
    _write(kind, _errors(error), **more)


@_quiet
def _record_exit(status: "Any", frame: "Any") -> None:
    """Record that the program ends itself with an error; argparse has its message in a frame."""
    passed_on = os.path.dirname(frame.f_code.co_filename).endswith(
        "multiprocessing"
    )  # of a process that has ended already
    if status is None or status == 0 or passed_on:
        return
    import threading

    message, parser = "" if isinstance(status, int) else _text(status), frame
    while parser is not None:
        names = (
            parser.f_locals
            if parser.f_code.co_name == "error"
            and parser.f_code.co_filename.endswith("argparse.py")
            else {}
        )
        if "message" in names and hasattr(names.get("self"), "prog"):
            message = _cut("%s: error: %s" % (names["self"].prog, names["message"]))
            break
        parser = parser.f_back
    _exits.append(message)
    description = {"type": "SystemExit", "module": "builtins", "message": message}
    description.update(_places(_stack(frame)))
    code = status if isinstance(status, int) else 1
    kind = "exit" if threading.current_thread() is threading.main_thread() else "thread"
    _write(
        kind,
        [description, *_errors(sys.exc_info()[1])],
        code=code & 0xFF,
        argparse=parser is not None,
    )


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
        _record("exception", error)
        show(kind, error, traceback)

    sys.excepthook = hook

    def at_exit() -> None:
        error = getattr(sys, "last_value", None)
        if os.getpid() not in done and isinstance(error, BaseException):
            _record("exception", error)

    atexit.register(at_exit)


@_quiet
def _record_text(text: str) -> None:
    """Record the text of a SystemExit that the script raised itself, and Python prints at the end.

    An exception that Python prints is in sys.last_value, and has a record of its own.
    """
    import threading

    is_script = hasattr(sys.modules.get("__main__"), "__file__")
    is_main = threading.get_ident() == threading.main_thread().ident
    is_known = getattr(sys, "last_value", None) is not None or _cut(text) in _exits
    if text.strip() and is_script and is_main and not is_known:
        error = {"type": "SystemExit", "module": "builtins", "message": _cut(text)}
        _write("exit", [error], code=1, argparse=False)


def _watch_raised_exits() -> None:
    """Record ``raise SystemExit("text")``, for which Python calls no hook.

    The text is written by Python itself: below that call there is no frame.
    """
    write = sys.stderr.write

    def write_recorded(text: str) -> int:
        if sys._getframe().f_back is None:
            _record_text(text)
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
            _record("destructor", arguments.exc_value, thread=str(name)[:200])
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
                _record_child(error)
                raise

        self.run = run_recorded
        return bootstrap(self, *arguments, **named)

    module.BaseProcess._toolkit_recorded = True
    module.BaseProcess._bootstrap = recorded


@_quiet
def _record_child(error: "BaseException") -> None:
    code = getattr(error, "code", None) if isinstance(error, SystemExit) else 1
    if code is None or code == 0 or (isinstance(error, SystemExit) and _written.get(os.getpid())):
        return  # sys.exit has recorded it
    _write("child", _errors(error), code=code if isinstance(code, int) else 1)


def _watch_crashes() -> None:
    if "PYTHONFAULTHANDLER" not in os.environ:
        import faulthandler

        faulthandler.enable()


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
):
    _quiet(_watch)()
if __name__ == "sitecustomize":
    _import_next()
