"""Reports of failing processes.

``scripts/report/sitecustomize.py`` writes them inside the ranks.
"""

from __future__ import annotations

from toolkit.model.base import Model


class ErrorRecord(Model, frozen=True, kw_only=True):
    """One error of a chain of errors.

    Attributes:
        type: name of the exception's class.
        module: the module that defines the class.
        message: text of the exception, at most 4,000 characters of it.
        file: of the user's last frame; empty if no frame is the user's.
        line: number in that file.
        function: in that frame.
        source: that line of the file.
        inner: file of the innermost frame, the user's or a library's.
        signal: name of the signal whose handler raised the error; empty if none did.
        explicit: the next error is the explicit cause of this one (``raise ... from``); else this
            one was raised while the next was handled.
    """

    type: str
    module: str = ""
    message: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""
    inner: str = ""
    signal: str = ""
    explicit: bool = False


class Report(Model, frozen=True, kw_only=True):
    """A failure of one process.

    Attributes:
        kind: ``exception`` or ``exit``: of the main thread; ``child``: of a process of
            multiprocessing; ``thread`` and ``destructor`` do not end the process.
        time_ns: nanoseconds since the epoch, by the clock of the node.
        host: node name.
        pid: process id, in a container perhaps that of its own PID namespace.
        errors: the last error first, then those that led to it.
        env: variables that identify the job and the rank of the process.
        program: file of the main program.
        group_rank: rank in torch.distributed; None before ranks have met.
        process: name of a process of multiprocessing; empty for the main one.
        index: number of a process that torch.multiprocessing.spawn started on its node.
        code: exit code, if the process exits with an explicit one.
        argparse: the message is that of an argument parser.
        thread: name of the thread or of the destructor.
    """

    kind: str
    time_ns: int
    host: str
    pid: int
    errors: tuple[ErrorRecord, ...]
    env: dict[str, str] = {}
    program: str = ""
    group_rank: int | None = None
    process: str = ""
    index: int | None = None
    code: int | None = None
    argparse: bool = False
    thread: str = ""
