"""apptainer: Apptainer, and Singularity, which has another name and the same options."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolkit.errors import NeedsInstallError, ToolkitError
from toolkit.model.case import Case
from toolkit.model.plan import Container
from toolkit.runtimes.shared.base import Runtime
from toolkit.runtimes.shared.findings import home


class Apptainer(Runtime):
    """Containers of Apptainer from a SIF."""

    summary = "Apptainer or Singularity, with a SIF"
    image = "sif"

    def check(self, case: Case) -> list[ToolkitError]:
        """Require a command that starts containers."""
        findings = super().check(case)
        if not case.facts.container:
            findings.append(
                NeedsInstallError(
                    f"neither {' or '.join(case.site.containers)} is on PATH",
                    place="container",
                    next_step="toolkit setup, or load its module",
                )
            )
        return findings

    def container(self, case: Case) -> Container:
        """Return how a rank enters an image.

        Our own images are entered by ``run``. It is not known what the runscript of a foreign one
        does (NGC's writes into the read-only image), so that one is entered by ``exec``.
        """
        manifest = case.manifest
        command = case.facts.container or "apptainer"
        file = PurePosixPath(case.image.path)
        name = manifest.name if manifest else file.stem
        has_runscript = manifest.runscript if manifest is not None else case.image.is_recipe
        return Container(
            command=command,
            action="run" if has_runscript else "exec",
            image=case.image.path,
            name=name,
            where=f"in {name}",
            label=file.name,
            prefix="APPTAINERENV_" if command == "apptainer" else "SINGULARITYENV_",
            gpus=bool(case.job.most_gpus),
            **home(name, case.site.scratch),
        )


RUNTIME = Apptainer()
