"""What `up` tells the cluster's first process, and what that one tells back."""

from __future__ import annotations

from typing import Literal

from toolkit.localcluster.shape import Shape
from toolkit.model.base import Model

KEEP = "keep\n"  # what `up` says when all is well; if it goes away without saying it, the cluster ends itself

Verb = Literal["cut", "join", "kill", "start"]
Power = Literal["on", "cut", "off"]


class Plan(Model, frozen=True, kw_only=True):
    """All of a cluster.

    Attributes:
        name: of the cluster.
        shape: a checked one.
        shared: directories below /tmp or /dev/shm that the nodes see.
        user: who runs it.
        as_user: whether that is an ordinary user, and the cluster in a user namespace.
    """

    name: str
    shape: Shape
    shared: tuple[str, ...] = ()
    user: str
    as_user: bool


class Report(Model, frozen=True, kw_only=True):
    """What the first process says while it starts.

    Attributes:
        step: what it begins, for people.
        ready: everything runs; the nodes still have to register.
        failed: why it gives up.
        logs: the files in which more of that may be found, the likeliest first.
    """

    step: str | None = None
    ready: bool = False
    failed: str | None = None
    logs: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


class Request(Model, frozen=True, kw_only=True):
    """What the running cluster is asked; without a verb, how its nodes are."""

    verb: Verb | None = None
    node: str | None = None


class Reply(Model, frozen=True, kw_only=True):
    """The answer: each node's power, whether the controller runs, or what went wrong."""

    nodes: dict[str, Power] = {}
    daemons: dict[str, bool] = {}
    failed: str | None = None
    details: tuple[str, ...] = ()
