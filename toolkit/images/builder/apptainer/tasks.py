"""Derive the sandbox's tasks for an image of which some steps are cached. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from toolkit.images.builder.apptainer.protocol import Task
from toolkit.images.host.host_mounts import ROOT, Bind
from toolkit.images.recipe.block import WHEELS
from toolkit.images.recipe.chain import Chain, Link

SCRIPTS = "steps"  # the directory of the steps' scripts, below the host configuration


@dataclass
class TaskPlan:
    """Tasks and their results.

    Attributes:
        tasks: The tasks in their order.
        layers: The steps of the tasks that change the image, by the path of the packed layer.
        scripts: The steps' scripts for the directory ``SCRIPTS``, by file name.
        compiles: Whether the tasks include the build stage.
    """

    tasks: list[Task] = field(default_factory=list)
    layers: dict[str, Link] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    compiles: bool = False


def needs_products(chain: Chain, cached: int) -> bool:
    """Return whether a step that must still run uses results of the build stage."""
    return any(link.products for link in chain.links[cached:])


def plan_tasks(
    chain: Chain,
    cached: int,
    *,
    directory: str,
    products: str,
    compiled: bool,
    until: int | None = None,
    seed_below: int = 0,
) -> TaskPlan:
    """Return the tasks that must run.

    Args:
        chain: The recipe's steps.
        cached: How many of the image's first steps need not run.
        directory: The directory for packed layers.
        products: The existing directory of the build stage's results; complete if ``compiled``.
        compiled: Whether the build stage's results come from the cache.
        until: How many of the image's first steps there shall be; all by default.
        seed_below: The number of layers, the base counted, on which the last step was made before;
            that layer is the file system after the base and the cached ones. 0: there is none.
    """
    plan = TaskPlan()
    common, end = len(chain.common), len(chain.links) if until is None else until
    stack = [f"l{number}" for number in range(cached + 1)]  # the base and the cached layers
    for link in chain.links[cached:common]:
        _add(plan, link, stack, layer=directory)
    if end > common and needs_products(chain, cached) and not compiled:
        plan.compiles = True
        apart = stack[: common + 1]
        for link in chain.build:
            _add(plan, link, apart, products=products if link is chain.build[-1] else "")
    for link in chain.links[max(cached, common) : end]:
        mounts = {products: WHEELS} if link.products else {}
        _add(plan, link, stack, layer=directory, mounts=mounts)
    if seed_below and end == len(chain.links):
        seeded = replace(plan.tasks[-1], seed=f"l{cached + 1}", seed_below=seed_below)
        plan.tasks[-1] = seeded
    return plan


def _add(
    plan: TaskPlan,
    link: Link,
    stack: list[str],
    *,
    layer: str = "",
    products: str = "",
    mounts: Mapping[str, str] | None = None,
) -> None:
    number = len(plan.tasks)
    packed = f"{layer}/{number}.sqfs" if layer else ""
    binds = (Bind(source=source, target=target) for source, target in (mounts or {}).items())
    task = Task(
        name=link.name,
        detail=link.detail,
        script=f"{ROOT}/{SCRIPTS}/{number}",
        lowers=tuple(reversed(stack)),
        upper=f"u{number}",
        layer=packed,
        product_source=WHEELS if products else "",
        products=products,
        binds=tuple(binds),
    )
    plan.tasks.append(task)
    plan.scripts[str(number)] = link.script
    if packed:
        plan.layers[packed] = link
    stack.append(task.upper)
