"""The directories of the host that a job's container sees. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from toolkit.model.plan import Bind
from toolkit.planning.inputs import Inputs
from toolkit.runtimes.shared.binds import checked_bind, parse_bind


def binds(inputs: Inputs) -> tuple[Bind, ...]:
    """Return the binds of a job; none lies within another.

    They are the working directory, the run's own directory, that of the script, the site's data
    sets, and what the user names.

    Raises:
        UsageError: a path cannot be bound.
    """
    paths = [
        inputs.directory,
        inputs.run_directory,
        inputs.folder,
        *(directory.path for directory in inputs.shown),
    ]
    if inputs.tree is not None:
        paths = [inputs.tree.cwd, inputs.run_directory, *paths]
    if inputs.shown:
        paths.sort(key=lambda path: len(PurePosixPath(path).parts))
    outermost: list[str] = []
    for path in paths:
        if not any(PurePosixPath(path).is_relative_to(other) for other in outermost):
            outermost.append(path)
    own = [checked_bind(Bind(source=path, target=path), "working directory") for path in outermost]
    named = tuple(parse_bind(text, inputs.directory) for text in inputs.job.bind)
    taken = {bind.target for bind in named}
    data = (
        checked_bind(
            Bind(source=inputs.site.datasets[name], target=f"/data/{name}", read_only=True),
            "datasets",
        )
        for name in inputs.job.datasets
        if name in inputs.site.datasets and f"/data/{name}" not in taken
    )
    return (*own, *data, *named)
