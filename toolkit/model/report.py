"""Records of failing processes, as ``scripts/report/sitecustomize.py`` writes them inside the ranks."""

from __future__ import annotations

from toolkit.model.base import Model


class ErrorRecord(Model, frozen=True, kw_only=True):
    """One error of a chain of errors.

    Attributes:
        type: name of the exception's class.
        module: in which the class is defined.
        message: text of the exception, at most 4,000 characters of it.
        file: of the user's last frame; empty if no frame is the user's.
        line: number in that file.
        function: in that frame.
        source: that line of the file.
        inner: file of the innermost frame, whoever it belongs to.
        signal: name of the signal whose handler raised the error; empty if none did.
        explicit: the next error is this one's stated cause (``raise ... from``); else this one was raised while the next was handled.
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
        kind: ``exception`` or ``exit``: of the main thread; ``child``: of a process of multiprocessing; ``thread`` and ``destructor``
            do not end the process.
        time_ns: nanoseconds since the epoch, by the clock of the node.
        host: node name.
        pid: process id, which a container may count by itself.
        errors: the last error first, then those that led to it.
        env: variables that tell which rank of which job the process is.
        program: file of the main program.
        group_rank: rank that torch.distributed knows; None before ranks have met.
        process: name of a process of multiprocessing; empty for the main one.
        index: number of a process that torch.multiprocessing.spawn started on its node.
        code: exit code, if the process ends itself with one.
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
