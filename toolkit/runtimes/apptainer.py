"""apptainer: Apptainer, and Singularity, which has another name and the same options."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolkit.errors import NeedsInstallError, ToolkitError
from toolkit.model.plan import Container
from toolkit.runtimes.shared.base import Discovery, Runtime, RuntimeFacts, RuntimeRequest
from toolkit.runtimes.shared.findings import home


class Apptainer(Runtime):
    """Containers of Apptainer from a SIF."""

    summary = "Apptainer or Singularity, with a SIF"
    image = "sif"

    def discover(self, discovery: Discovery) -> RuntimeFacts:
        """Find the SIF."""
        image = discovery.find_image()
        return RuntimeFacts(
            image=image.path,
            manifest=image.manifest,
            shared=("--image", image.path) if image.exists else None,
        )

    def check(self, request: RuntimeRequest) -> list[ToolkitError]:
        """Require a command that starts containers."""
        findings = super().check(request)
        if not request.facts.container:
            findings.append(
                NeedsInstallError(
                    f"neither {' or '.join(request.site.containers)} is on PATH",
                    place="container",
                    next_step="toolkit setup, or load its module",
                )
            )
        return findings

    def container(self, request: RuntimeRequest) -> Container:
        """Return how a rank enters an image.

        Our own images are entered by ``run``. It is not known what the runscript of a foreign one
        does (NGC's writes into the read-only image), so that one is entered by ``exec``.
        """
        manifest = request.manifest
        command = request.facts.container or "apptainer"
        file = PurePosixPath(request.image)
        name = manifest.name if manifest else file.stem
        has_runscript = manifest.runscript if manifest is not None else request.is_recipe
        return Container(
            command=command,
            action="run" if has_runscript else "exec",
            image=request.image,
            name=name,
            where=f"in {name}",
            label=file.name,
            prefix="APPTAINERENV_" if command == "apptainer" else "SINGULARITYENV_",
            binds=request.binds,
            gpus=bool(request.job.most_gpus),
            **home(name, request.site.scratch),
        )


RUNTIME = Apptainer()
