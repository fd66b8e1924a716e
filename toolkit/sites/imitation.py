"""A site on the local cluster: its partitions, limits and rules, with this machine's commands and directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from toolkit.model.site import Site


def imitation(site: Site, local: Site, expanded: Callable[[str], str]) -> Site:
    """The site as far as this machine can be it.

    Args:
        site: that is imitated.
        local: the local cluster as it is written.
        expanded: a directory with its variables replaced.
    """

    def there(path: str | None) -> str | None:
        return path if path is not None and Path(expanded(path)).is_dir() else None

    return replace(
        site,
        access=local.access,
        containers=local.containers,
        modules=(),
        interface=local.interface,
        mpi=(),
        private_directories=local.private_directories,
        environment={**local.environment, **site.environment},
        images=tuple(path for path in site.images if there(path)),
        datasets={name: path for name, path in site.datasets.items() if there(path)},
        scratch=there(site.scratch),
        submit_directory=there(site.submit_directory),
    )
