"""Multi-node training on Slurm clusters in containers: images, launching, explaining."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.api.functions import submit

__all__ = ["__version__", "submit"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import ``toolkit.submit`` at its first use.

    The command line, and callers that only need the version, do not pay for the import.
    """
    if name == "submit":
        from toolkit.api.functions import submit

        return submit
    raise AttributeError(f"module 'toolkit' has no attribute {name!r}")
