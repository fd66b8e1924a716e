"""docker: Docker or podman on one machine.

Each task is a container in the node's network, runs as the user, and ends with its task.
"""

from __future__ import annotations

from toolkit.errors import LauncherMismatchError, ShapeError, ToolkitError, UsageError
from toolkit.model.case import Case
from toolkit.model.environment import Engine
from toolkit.model.plan import Container
from toolkit.runtimes.shared.base import (
    PREFIX,
    Runtime,
)
from toolkit.runtimes.shared.findings import home, missing_frameworks

# The engine's own client would read variables of these names instead of giving them to the rank.
_CLIENTS = ("DOCKER_", "CONTAINER_", "CONTAINERS_")


class Docker(Runtime):
    """Containers of Docker or podman on one node."""

    summary = "Docker or podman, on one node, with an image of that engine"
    image = "docker"
    offers = frozenset()
    interface = "lo"

    def discover(self, case: Case) -> Case:
        """Find the engine that answers, and what the image's Python can import."""
        from toolkit.runtimes.discover.docker_engine import discover

        engine, manifest = discover(case.image.path)
        return case._replace(image=case.image._replace(manifest=manifest), engine=engine)

    def check(self, case: Case) -> list[ToolkitError]:
        """Require one node, GPUs that the engine can give, and variables for the ranks alone."""
        findings = super().check(case)
        job, engine = case.job, case.engine
        program = engine.program if engine else "docker"
        if job.node_range[1] > 1:
            findings.append(
                ShapeError(
                    "docker runs on one node only: an engine does not know other nodes, "
                    "nor what Slurm gave the job there",
                    place="--nodes",
                    next_step="--nodes 1, or --runtime apptainer "
                    "(toolkit image build --engine docker gives a SIF)",
                )
            )
        if job.pty:
            findings.append(
                UsageError(
                    "ranks in docker have no terminal",
                    place="--pty",
                    next_step="leave it out, or --runtime apptainer",
                )
            )
        has_real_gpus = job.most_gpus and case.site.access != "local-cluster"
        if engine and has_real_gpus and not engine.nvidia:
            findings.append(
                LauncherMismatchError(
                    f"{program} here gives containers no GPUs",
                    place="--gpus",
                    next_step="install NVIDIA's container toolkit, or --runtime apptainer",
                )
            )
        findings += [
            UsageError(
                f"{program} itself reads {name}, so that it cannot be set for the ranks",
                place="--env",
                next_step="leave it out",
            )
            for name in job.env
            if name == "HOME" or name.startswith(_CLIENTS)
        ]
        return findings

    def container(self, case: Case) -> Container:
        """Return the image by its reference; the engine's client starts it as the user."""
        engine = case.engine
        program = engine.program if engine else "docker"
        keeps_user = (
            ("--userns", "keep-id", *_groups(engine)) if program == "podman" else ("--user", "0:0")
        )
        host = "CONTAINER_HOST" if program == "podman" else "DOCKER_HOST"
        return Container(
            runtime=self.name,
            command=program,
            image=case.image.path,
            name=case.image.path,
            where=f"in {case.image.path} by {program}",
            prefix=PREFIX,
            gpus=bool(case.job.most_gpus and engine and engine.nvidia),
            options=keeps_user if engine and engine.rootless else (),
            settings={host: engine.address} if engine and engine.address else {},
            **home(case.image.path, case.site.scratch),
        )

    def warnings(self, case: Case) -> tuple[str, ...]:
        """Warn of missing frameworks, and of groups that the ranks do not have."""
        engine = case.engine
        missing = missing_frameworks(case, case.image.path)
        if not engine or engine.program != "podman" or not engine.rootless or _groups(engine):
            return missing
        return (
            *missing,
            "ranks have your first group only: podman takes no others along "
            "through the socket that DOCKER_HOST names",
        )


def _groups(engine: Engine | None) -> tuple[str, ...]:
    """Return the options that keep all of the user's groups; podman refuses them by a socket."""
    return () if engine and engine.address else ("--group-add", "keep-groups")


RUNTIME = Docker()
