"""Run programs in an image that is verified, and ask it what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from toolkit import shell
from toolkit.config import package_directory
from toolkit.errors import CommandFailedError
from toolkit.images.store.settings import run_in_image, user_options
from toolkit.model.base import Model

MARK = "toolkit-json: "  # begins the line in which a script of ours reports
MOUNTED = "/mnt/toolkit/checks"  # where the image has the scripts of ``images/checks``
_PATIENCE = 300.0  # seconds for one program in the image


class ImageContents(Model, frozen=True, kw_only=True):
    """The contents of an image, as ``checks/look.py`` lists them without importing anything.

    Attributes:
        python: version of Python 3; empty if there is none.
        modules: the frameworks and related modules in it.
        programs: the programs of MPI, Horovod and torch that are on PATH.
        cuda: version of CUDA; empty if there is none.
        compat: whether it has CUDA's compat package, by which data-center GPUs run newer CUDA on
            older drivers.
        has_checks: whether it carries checks of its own.
    """

    python: str = ""
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    cuda: str = ""
    compat: bool = False
    has_checks: bool = False


@dataclass(frozen=True)
class ImageRunner:
    """Runs programs in an image without help from this machine: no home, variables or ``/tmp``.

    Attributes:
        image: the SIF file.
        gpus: with the node's NVIDIA driver.
        as_user: as an ordinary user, also if root calls.
    """

    image: str
    gpus: bool = False
    as_user: bool = False

    def run(
        self,
        argv: Sequence[str],
        *,
        action: Literal["exec", "run"] = "exec",
        timeout: float = _PATIENCE,
    ) -> shell.Result:
        """Run a program; a failure is in the result.

        Raises:
            CommandFailedError: it gave no answer within ``timeout`` seconds.
        """
        options = [
            *(("--nv",) if self.gpus else ()),
            *(user_options() if self.as_user else ()),
            *("--bind", f"{package_directory('images/checks')}:{MOUNTED}:ro"),
        ]
        return run_in_image(self.image, argv, timeout=timeout, action=action, options=options)

    def contents(self) -> ImageContents | None:
        """Return the contents of the image; None if it has no Python 3 that runs."""
        try:
            lines = self.run(["python3", f"{MOUNTED}/look.py"]).stdout.splitlines()
        except CommandFailedError:
            return None
        report = next((line for line in reversed(lines) if line.startswith(MARK)), None)
        if report is None:
            return None
        return msgspec.json.decode(report.removeprefix(MARK), type=ImageContents)
