"""Multi-node training on Slurm clusters in containers: images, launching, explaining."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.api.functions import submit

__all__ = ["__version__", "submit"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``toolkit.submit`` is imported when it is used: the command line, and who only wants the version, do not pay for it."""
    if name == "submit":
        from toolkit.api.functions import submit

        return submit
    raise AttributeError(f"module 'toolkit' has no attribute {name!r}")
