"""notebook: JupyterLab on the first node of the job, on a Unix socket of the node's own."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.errors import LauncherMismatchError, ToolkitError, UsageError
from toolkit.launchers.shared.base import Launcher, Request
from toolkit.model.plan import Launch

# In the others a container has neither the node's /tmp nor the user's own number.
_RUNTIMES = ("apptainer", "conda", "none")
_PACKAGE = "jupyterlab"


class Notebook(Launcher):
    """One task with the job's share of the first node; the other nodes wait for its kernels."""

    summary = "JupyterLab on the first node: what toolkit notebook starts"
    needs = frozenset(("nodes",))
    is_internal = True
    is_per_node = True
    takes_node = True
    has_pty = False
    takes_programs = True
    starts_python = True
    writes_reports = False
    task_noun = "task"

    def check(self, request: Request) -> Sequence[ToolkitError]:
        """Require JupyterLab, a runtime that shows the node's files, and a single plain job."""
        findings: list[ToolkitError] = []
        runtime = request.job.runtime or "apptainer"
        if runtime not in _RUNTIMES:
            findings.append(
                UsageError(
                    f"notebooks do not run in the runtime {runtime}",
                    place="--runtime",
                    choices=_RUNTIMES,
                    next_step="--runtime apptainer",
                )
            )
        if request.job.array or request.job.interactive:
            findings.append(
                UsageError(
                    "a notebook is one batch job",
                    place="--array" if request.job.array else "--interactive",
                    next_step="leave the option out",
                )
            )
        return [*findings, *_jupyter_findings(request)]

    def launch(self, request: Request) -> Launch:
        """Start the server, whose first argument is the seconds after which it stops if unused."""
        program = f"{request.run_directory}/notebook_server.py"
        decided = super().launch(request)
        return replace(decided, program=("python3", program, *request.arguments))


def _jupyter_findings(request: Request) -> list[ToolkitError]:
    """Return an error if the image is known to lack JupyterLab."""
    manifest = request.manifest
    packages = manifest.packages.pip if manifest is not None else {}
    if manifest is None or not packages or _PACKAGE in packages:
        return []
    own = f"{manifest.name}-notebook"
    return [
        LauncherMismatchError(
            f"the image {manifest.name} has no JupyterLab",
            place="--image",
            next_step=f"add the feature jupyter: toolkit image new {own} --from {manifest.name} "
            f"--with jupyter; toolkit image build {own}.toml",
        )
    ]


LAUNCHER = Notebook()
