"""notebook: JupyterLab on the first node of the job, on a Unix socket of the node's own."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from toolkit.errors import LauncherMismatchError, ToolkitError, UsageError
from toolkit.launchers.shared.base import Launcher
from toolkit.model.case import Case
from toolkit.model.plan import Launch
from toolkit.quoting import shell

_RUNTIMES = ("apptainer", "conda", "none", "pyxis")
_PACKAGE = "jupyterlab"


class Notebook(Launcher):
    """One task with the job's share of the first node; the other nodes wait for its kernels."""

    summary = "JupyterLab on the first node: what toolkit notebook starts"
    is_internal = True
    is_notebook = True
    is_per_node = True
    takes_node = True
    has_pty = False
    takes_programs = True
    has_own_program = True
    is_private = True
    starts_python = True
    writes_reports = False
    task_noun = "task"

    def check(self, case: Case) -> Sequence[ToolkitError]:
        """Require JupyterLab, a runtime that shows the node's files, and a single plain job."""
        findings: list[ToolkitError] = []
        runtime = case.job.runtime or "apptainer"
        if runtime not in _RUNTIMES:
            findings.append(
                UsageError(
                    f"notebooks do not run in the runtime {runtime}: its engine starts containers "
                    "outside of the job, where the job's own /tmp, with the server's socket, need "
                    "not be",
                    place="--runtime",
                    next_step="--runtime apptainer (toolkit image build --engine docker gives a "
                    "SIF); or pyxis, conda, none",
                )
            )
        if case.job.array or case.job.interactive:
            findings.append(
                UsageError(
                    "a notebook is one batch job",
                    place="--array" if case.job.array else "--interactive",
                    next_step="leave the option out",
                )
            )
        return [*findings, *_jupyter_findings(case)]

    def launch(self, case: Case) -> Launch:
        """Start the server, whose first argument is the seconds after which it stops if unused."""
        program = f"{case.run}/notebook_server.py"
        decided = super().launch(case)
        return replace(decided, program=("python3", program, *case.job.arguments))


def _jupyter_findings(case: Case) -> list[ToolkitError]:
    """Return an error if the image or the environment is known to lack JupyterLab."""
    manifest, environment = case.manifest, case.environment
    if manifest is None:
        return []
    modules = {module for python in manifest.pythons[:1] for module in python.modules}
    known = set(manifest.packages.pip) or modules
    if not known or _PACKAGE in known:
        return []
    if environment is not None:
        lacking, place = environment.python, "--runtime"
        step = f"{shell(environment.python)} -m pip install jupyterlab; or --runtime apptainer"
    else:
        own = f"{manifest.name}-notebook"
        lacking, place = f"the image {manifest.name}", "--image"
        step = (
            f"add the feature jupyter: toolkit image new {own} --from {manifest.name} "
            f"--with jupyter; toolkit image build {own}.toml"
        )
    cause = f"{lacking} has no JupyterLab"
    return [LauncherMismatchError(cause, place=place, next_step=step)]


LAUNCHER = Notebook()
