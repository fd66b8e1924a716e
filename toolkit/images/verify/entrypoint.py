"""Entering the image prints nothing: what a rank prints is the rank's own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

from toolkit.images.verify.case import Answer, Case, failed, passed

_WORD = "toolkit-is-in"


def verify(case: Case) -> Answer:
    """A foreign image is entered as jobs enter it, by ``exec``: nobody knows what its own runscript would start."""
    ours = case.image.manifest is not None and case.image.manifest.runscript
    actions: tuple[Literal["exec", "run"], ...] = ("exec", "run") if ours else ("exec",)
    with ThreadPoolExecutor() as both:
        wrong = list(both.map(partial(_wrong, case), actions))
    for action, what in zip(actions, wrong, strict=True):
        if what:
            return failed(f"by {action}: {what}")
    return passed(
        "prints nothing of its own"
        if ours
        else "prints nothing of its own by exec; its runscript is not used by jobs and was not run"
    )


def _wrong(case: Case, action: Literal["exec", "run"]) -> str:
    result = case.inside.run(["/bin/sh", "-c", f"echo {_WORD}"], action=action, timeout=60)
    lines = [
        line for line in (*result.stdout.splitlines(), *result.stderr.splitlines()) if line.strip()
    ]
    if not result.ok or _WORD not in lines:
        return f"a command does not run in it ({(lines or [f'exit code {result.returncode}'])[-1].strip()})"
    own = [line.strip() for line in lines if line != _WORD]
    return (
        f"it prints {len(own)} line{'s' if len(own) != 1 else ''} of its own, first: {own[0]}"
        if own
        else ""
    )
