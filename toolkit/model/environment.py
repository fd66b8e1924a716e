"""What was found where the ranks run in no SIF: a Python with its packages, or an engine with an image."""

from __future__ import annotations

from typing import Literal

from toolkit.model.base import Model


class Environment(Model, frozen=True, kw_only=True):
    """A Python on the host and what it can import.

    Attributes:
        name: for people.
        kind: what makes it: conda, a virtual environment, or the host itself (with its modules).
        prefix: its directory; of the host's own Python that directory needs no entering.
        python: path of the interpreter.
        version: of Python.
        torchrun: whether that program is there.
        mpirun: how the mpirun that it finds introduces itself; None: there is none.
        variables: what the user gave the environment by `conda env config vars set`.
    """

    name: str
    kind: Literal["conda", "venv", "host"]
    prefix: str
    python: str
    version: str
    torchrun: bool = False
    mpirun: str | None = None
    variables: dict[str, str] = {}


class Engine(Model, frozen=True, kw_only=True):
    """A Docker engine, or podman.

    Attributes:
        program: its client: ``docker`` or ``podman``.
        address: of the engine where the user's settings name one, for its client; empty: that finds it by itself.
        rootless: it runs as the user, who is root in its containers.
        nvidia: it can give containers the node's GPUs.
    """

    program: str
    address: str = ""
    rootless: bool = False
    nvidia: bool = False
