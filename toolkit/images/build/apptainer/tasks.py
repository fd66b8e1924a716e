"""What the sandbox has to do for an image of which some steps are kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.images.build.apptainer.work import Bind, Task
from toolkit.images.build.host_mounts import ROOT
from toolkit.images.recipe.block import WHEELS
from toolkit.images.recipe.chain import Chain, Link

SCRIPTS = "steps"  # below what is lent to a build


@dataclass
class TaskPlan:
    """Tasks, and what becomes of them.

    Attributes:
        tasks: in their order.
        layers: of the tasks that change the image: what they are layers of, by the path that they are packed at.
        scripts: file name -> text, to be put at ``SCRIPTS``.
        compiles: there are tasks of the build stage among them.
    """

    tasks: list[Task] = field(default_factory=list)
    layers: dict[str, Link] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    compiles: bool = False


def needs_products(chain: Chain, kept: int) -> bool:
    """Whether a step that is still to run takes something from the build stage."""
    return any(link.products for link in chain.links[kept:])


def plan_tasks(
    chain: Chain,
    kept: int,
    *,
    directory: str,
    products: str,
    compiled: bool,
    until: int | None = None,
) -> TaskPlan:
    """What is to be done.

    Args:
        kept: how many of the image's first steps need not run.
        directory: where layers are packed.
        products: the directory of what the build stage makes; there already, and full where it is ``compiled``.
        until: how many of the image's first steps there shall be; all by default.
    """
    made = TaskPlan()
    common, end = len(chain.common), len(chain.links) if until is None else until
    stack = [f"l{number}" for number in range(kept + 1)]  # the base, and what is kept
    for link in chain.links[kept:common]:
        _add(made, link, stack, layer=directory)
    if end > common and needs_products(chain, kept) and not compiled:
        made.compiles = True
        aside = stack[: common + 1]
        for link in chain.build:
            _add(made, link, aside, products=products if link is chain.build[-1] else "")
    for link in chain.links[max(kept, common) : end]:
        _add(made, link, stack, layer=directory, lent={products: WHEELS} if link.products else {})
    return made


def _add(
    made: TaskPlan,
    link: Link,
    stack: list[str],
    *,
    layer: str = "",
    products: str = "",
    lent: Mapping[str, str] | None = None,
) -> None:
    number = len(made.tasks)
    packed = f"{layer}/{number}.sqfs" if layer else ""
    task = Task(
        name=link.name,
        detail=link.detail,
        script=f"{ROOT}/{SCRIPTS}/{number}",
        lowers=tuple(reversed(stack)),
        upper=f"u{number}",
        layer=packed,
        inside=WHEELS if products else "",
        products=products,
        binds=tuple(Bind(source=source, target=target) for source, target in (lent or {}).items()),
    )
    made.tasks.append(task)
    made.scripts[str(number)] = link.script
    if packed:
        made.layers[packed] = link
    stack.append(task.upper)
