"""Output of the command line: results on standard output, everything about them on standard error.

It is plain text when not a terminal. What others wrote, in logs or labels, is among it, so nothing
is printed that a terminal would obey but our own drawing (``text``).
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.errors import PlanError, ToolkitError, of_system
from toolkit.text import json_safe, one_line, visible
from toolkit.units import human_time

if TYPE_CHECKING:
    from toolkit.model.run import Plan

SUBJECT = 11  # width of the first column: "plan", "script", "queued", "controller"
_LONG = 3.0  # seconds after which a step is announced where no terminal shows it
_WIDEST = 4096  # characters of a cell: all cells of its column are as wide

# Those that a login node can run for a laptop, where `--on` was typed.
_COMMANDS = re.compile(
    r"toolkit (?=(?:bench|cancel|cluster|doctor|explain|forward|image|logs|notebook|prune|ps|pull"
    r"|push|report|results|rm|run|shell|site|ssh|stacks|top|usage|workshop)\b)"
)
_OF_FINDINGS = [
    "place",
    "cause",
    "source",
    "next_step",
    "close",
    "choices",
    "details",
    "kind",
    "exit_code",
]
_ERASE = "\r\033[K"  # what the line of a step is drawn over with


def out(text: str = "") -> None:
    """Print a line of the result."""
    print(visible(text), flush=True)


def note(text: str) -> None:
    """Print a line about the result."""
    print(visible(text), file=sys.stderr, flush=True)


def document(text: str) -> None:
    """Print a result that other programs read, such as a script: exact, except on a terminal."""
    shown = visible(text) if sys.stdout.isatty() else text
    print(shown, end="" if shown.endswith("\n") else "\n", flush=True)


def typed(text: str) -> str:
    """Return a message with its commands as the user types them: ``toolkit --on LOGIN ps``."""
    return _COMMANDS.sub(lambda _: f"toolkit {os.environ.get('TOOLKIT_ON_NAMED', '')}", text)


def subject(name: str, text: str) -> str:
    """Format ``plan     2 nodes x 2 ranks``; a subject of "" continues the one above."""
    return f"{name:<{SUBJECT - 1}} {typed(text)}".rstrip().replace("\n", "\\n")


def say(name: str, text: str) -> None:
    """Print a line about the result, with its subject."""
    note(subject(name, text))


def say_all(lines: Iterable[tuple[str, str]]) -> None:
    """Print lines about the result, each with its subject."""
    for name, text in lines:
        say(name, text)


def fact(name: str, text: str) -> None:
    """Print a line of the result, with its subject."""
    out(subject(name, text))


def result(data: Any, text: str, *, as_json: bool) -> None:
    """Print a result for programs, or as text for people, if there is any."""
    if as_json:
        out_json(data)
    elif text:
        out(text)


def listing(
    header: Sequence[str], rows: Sequence[Sequence[object]], data: Any = None, *, as_json: bool
) -> None:
    """Print rows as a table, or their data for programs."""
    result(data, table(header, rows), as_json=as_json)


def out_json(data: Any) -> None:
    """Print a result for programs: plain data, or models with data in them."""
    import json

    import msgspec

    plain = msgspec.to_builtins(data, enc_hook=str)
    print(json_safe(json.dumps(plain, indent=2, ensure_ascii=False)), flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format columns as wide as they need to be; the last one is not padded."""
    cells = [[one_line(str(cell)[:_WIDEST]) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def show_error(error: ToolkitError) -> None:
    """Print what is wrong, where, what is close, and what to do next; its exit code last."""
    from toolkit.text import redacted

    findings = error.findings if isinstance(error, PlanError) else ()
    lines = [line for each in (error, *findings) for line in _block(each)]
    last = f"docs: {error.page}   exit {error.exit_code}: {error.kind}"
    lines.append(last.rjust(min(columns(), 100)))
    for line in lines:  # a command in it may hold a secret; a line break may fake a line
        print(one_line(redacted(line)), file=sys.stderr, flush=True)


def json_too(function: Callable[..., Any]) -> Callable[..., Any]:
    """Print the error of a command with ``--json`` as JSON, too.

    Each finding has its place, its source and what to do.
    """

    @functools.wraps(function)
    def call(*words: Any, **options: Any) -> Any:
        try:
            return function(*words, **options)
        except Exception as raised:
            error = raised if isinstance(raised, ToolkitError) else of_system(raised)
            if error is not None and options.get("as_json"):
                findings = error.findings if isinstance(error, PlanError) else (error,)
                out_json(
                    {
                        "error": error.cause,
                        "exit_code": error.exit_code,
                        "findings": [
                            {key: getattr(finding, key) for key in _OF_FINDINGS}
                            for finding in findings
                        ],
                    }
                )
            raise

    return call


def _block(error: ToolkitError) -> list[str]:
    source = f" ({error.source})" if error.source else ""
    is_listed = error.choices and not error.close and not error.next_step
    valid = ", ".join(error.choices) if is_listed else ""
    rows = (("at", error.place), ("close", error.close), ("valid", valid))
    lines = [f"error: {error.cause}{source}"]
    lines += [f"  {name:<9} {text}" for name, text in rows if text]
    lines += [f"  | {row.expandtabs()}" for text in error.details for row in text.split("\n")]
    lines += [f"  next      {typed(error.next_step)}"] if error.next_step else []
    return lines


def columns() -> int:
    """Return the width of the terminal."""
    import shutil  # with all that compresses

    return shutil.get_terminal_size().columns


class Steps:
    """The display of the steps of long work, a line each, with its time.

    A terminal shows the current one; elsewhere a long one is announced.
    """

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._name = self._detail = ""
        self._began = 0.0
        self._announcement = threading.Timer(_LONG, bool)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stopped = "stopped" if kind and issubclass(kind, KeyboardInterrupt) else "failed"
        self.end(stopped if kind else "done")

    def begin(self, step: str, detail: str = "", expected: float | None = None) -> None:
        """Show a step as the current one."""
        self.end()
        self._name, self._detail, self._began = step, detail, time.monotonic()
        about = f" of about {human_time(expected)}" if expected else ""
        line = one_line(subject(step, f"{detail} ...{about}"))
        if self._is_live:
            shown = line[: columns() - 1]
            print(f"{_ERASE}{shown}", end="", file=sys.stderr, flush=True)
        else:
            self._announcement = threading.Timer(_LONG, note, (line,))
            self._announcement.daemon = True
            self._announcement.start()

    def end(self, outcome: str = "done") -> None:
        """Print the current step with its outcome and time."""
        self._announcement.cancel()
        name, self._name = self._name, ""
        if name:
            passed = human_time(time.monotonic() - self._began)
            self.say(name, f"{self._detail:<34} {outcome:<7} {passed:>7}")

    def say(self, name: str, text: str) -> None:
        """Print a line that is no step."""
        line = visible(subject(name, text))
        print((_ERASE if self._is_live else "") + line, file=sys.stderr, flush=True)


def mapping(rows: Mapping[str, object]) -> str:
    """Format names and values, a line each."""
    shown = {one_line(name): one_line(str(value)) for name, value in rows.items()}
    width = max((len(name) for name in shown), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())


def on_terminal() -> bool:
    """Return whether a person reads the result."""
    return sys.stdout.isatty()


def warn(plan: Plan) -> None:
    """Print how a plan understood its command, and what it warns of."""
    say_all(("note", text) for text in plan.notes)
    say_all(("warning", text) for text in plan.warnings)


def announce(plan: Plan) -> None:
    """Print a plan in one line, and its notes and warnings.

    An example is ``2 nodes x 2 ranks, torchrun (default), pytorch_cpu.sif, site local``.
    """
    launch = f"{plan.launch.launcher} ({plan.origins.get('launcher', 'default')})"
    say("plan", f"{plan.shape}, {launch}, {plan.container.shown}, site {plan.site}")
    warn(plan)
