"""The script that lint examines, and the form of its results. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from toolkit.checks.result import Format
from toolkit.lint.script import Script
from toolkit.model.site import Site

FORMAT = Format(
    words={"failed": "error", "warning": "warning"},
    keys={
        "rule": "name",
        "severity": "outcome",
        "line": "line",
        "message": "message",
        "why": "cause",
        "source": "source",
        "advice": "fix",
        "fix": "edits",
    },
)


class Context(NamedTuple):
    """Facts that rules know apart from the script.

    Attributes:
        site: the cluster that the script is for; None if rules of sites do not apply.
        is_directory: whether a path, relative to the script's directory, is a directory; if that is
            not known, every path is taken for one.
        syntax: bash's own errors: line and message.
    """

    site: Site | None = None
    is_directory: Callable[[str], bool] = bool
    syntax: tuple[tuple[int, str], ...] = ()


class LintCase(NamedTuple):
    """A script and its context.

    Attributes:
        script: the parsed script.
        context: facts that rules know apart from it.
    """

    script: Script
    context: Context

    @property
    def site(self) -> Site | None:
        """The cluster that the script is for."""
        return self.context.site
