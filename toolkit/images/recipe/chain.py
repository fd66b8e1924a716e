"""The steps of an image as scripts with keys, which a layered build runs and caches. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.images.recipe.bases import Base
from toolkit.images.recipe.block import CheckCall
from toolkit.images.recipe.digests import hash_texts
from toolkit.images.recipe.stages import Stages, Step
from toolkit.model.base import Model

_FORMAT = "2"  # of the cache under the keys: another number makes all entries useless


class Link(Model, frozen=True, kw_only=True):
    """A step as a script.

    Attributes:
        script: for ``sh -e`` as root of the image, in ``/``.
        key: of the image's state after it: changes with the step and with all before it.
        products: it takes some of the build stage's products.
    """

    name: str
    detail: str
    script: str
    key: str
    products: bool = False


class Chain(Model, frozen=True, kw_only=True):
    """A base and the steps on it.

    Attributes:
        common: the first steps of the image, which the build stage is on top of as well.
        build: those of the build stage, which is thrown away but for its products.
        final: the further steps of the image.
        products_key: of the build stage's products: what they are compiled against, and how.
        files: path -> text of the files that are put into the image last.
        checks: of the image; their scripts are among ``files``.
        prelude: the first lines of every step's shell.
        keeps_temporary: /tmp and /var/tmp of the steps are those of the image.
    """

    base: Base
    base_key: str
    common: tuple[Link, ...]
    build: tuple[Link, ...]
    final: tuple[Link, ...]
    products_key: str
    files: dict[str, str]
    checks: tuple[CheckCall, ...] = ()
    prelude: tuple[str, ...]
    keeps_temporary: bool = False

    @property
    def links(self) -> tuple[Link, ...]:
        """Return the steps of the image itself."""
        return (*self.common, *self.final)


def hash_base(base: Base, state: str = "") -> str:
    """Return a key that changes when the base would.

    Args:
        base: of the image.
        state: the present version of the base, where its description does not fix it: the digest
            of an image, the time of a file.
    """
    output = base.output()
    return hash_texts(_FORMAT, *output.header, *output.setup, state)


def build_chain(stages: Stages, state: str = "") -> Chain:
    """Return the steps of an image, each with its key.

    Args:
        stages: of the image.
        state: of the base, as for ``base_key``.
    """
    first = hash_base(stages.base, state)
    common = _links(stages, stages.common, first)
    compiled_on = common[-1].key if common else first
    build = _links(stages, stages.build, compiled_on)
    products = build[-1].key if build else ""
    return Chain(
        base=stages.base,
        base_key=first,
        common=common,
        build=build,
        final=_links(stages, stages.final, compiled_on, products),
        products_key=products,
        files=stages.files,
        checks=stages.checks,
        prelude=stages.prelude,
        keeps_temporary=stages.keeps_temporary,
    )


def _links(stages: Stages, steps: Sequence[Step], key: str, products: str = "") -> tuple[Link, ...]:
    links: list[Link] = []
    for step in steps:
        script = "\n".join((*stages.prelude, "set -x", *step.lines)) + "\n"
        key = hash_texts(key, script, products if step.products else "")
        links.append(
            Link(name=step.name, detail=step.detail, script=script, key=key, products=step.products)
        )
    return tuple(links)
