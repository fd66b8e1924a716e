"""Runtimes that use no SIF: a Python environment of the host, or a container engine."""

from __future__ import annotations

from typing import Literal

from toolkit.model.base import Model
from toolkit.model.image import Manifest


class Environment(Model, frozen=True, kw_only=True):
    """A Python on the host and its packages.

    Attributes:
        name: as shown to users.
        kind: conda, a virtual environment, or the host itself (with its modules).
        prefix: its directory; the host's own Python needs no activation.
        python: path of the interpreter.
        version: of Python.
        torchrun: the environment has the program torchrun.
        mpirun: the first line of ``mpirun --version`` there; None: there is no mpirun.
        manifest: what it holds, in the form that is known of images.
        variables: variables that the user set with `conda env config vars set`.
    """

    name: str
    kind: Literal["conda", "venv", "host"]
    prefix: str
    python: str
    version: str
    torchrun: bool = False
    mpirun: str | None = None
    manifest: Manifest | None = None
    variables: dict[str, str] = {}


class Engine(Model, frozen=True, kw_only=True):
    """A Docker or podman engine.

    Attributes:
        program: its client: ``docker`` or ``podman``.
        address: the engine's address for its client, if the user's settings name one; empty: the
            client finds the engine by itself.
        rootless: the engine runs as the user, who is root in its containers.
        nvidia: the engine can give containers the node's GPUs.
    """

    program: str
    address: str = ""
    rootless: bool = False
    nvidia: bool = False
