"""Describe why a process fails, and write that to a file beside this one.

``sitecustomize`` loads this module in a process that fails, and in no other: it would cost every
start of Python some milliseconds. It works on Python 3.6 and later.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENVIRONMENT = {}  # type: dict[str, str]  # set by sitecustomize: of the start of the process
_HERE = os.path.dirname(os.path.abspath(__file__))
_STDLIB = os.path.dirname(os.__file__) + os.sep
_MOST_RECORDS, _MOST_TEXT, _MOST_ERRORS = 5, 4000, 6
_exits = []  # type: list[str]  # the messages of recorded exits
_written = {}  # type: dict[int, int]  # process id -> number of records: a forked process counts its own


def _is_own(path: str) -> bool:
    """Return whether a file is the user's.

    It is not if it belongs to the standard library or to an installed package.
    """
    packaged = "site-packages" + os.sep in path or "dist-packages" + os.sep in path
    return not (packaged or path.startswith((_STDLIB, _HERE + os.sep, "<frozen")))


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
    host = ENVIRONMENT.get("SLURMD_NODENAME") or os.uname()[1]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    record = {
        "kind": kind,
        "time_ns": int(time.time() * 1e9),
        "host": host,
        "pid": pid,
        "errors": errors,
        "env": ENVIRONMENT,
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


def record(kind: str, error: "BaseException", **more: "Any") -> None:
    """Record an exception."""
    _write(kind, _errors(error), **more)


def record_exit(status: "Any", frame: "Any") -> None:
    """Record that the program ends itself with an error; argparse has its message in a frame."""
    passed_on = os.path.dirname(frame.f_code.co_filename).endswith(
        "multiprocessing"
    )  # of a process that has ended already
    if passed_on:
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


def record_text(text: str) -> None:
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


def record_child(error: "BaseException") -> None:
    """Record the exception that ends a process of multiprocessing."""
    code = getattr(error, "code", None) if isinstance(error, SystemExit) else 1
    if code is None or code == 0 or (isinstance(error, SystemExit) and _written.get(os.getpid())):
        return  # sys.exit has recorded it
    _write("child", _errors(error), code=code if isinstance(code, int) else 1)
