"""Keep the layers that the sandbox packs in the caches, each as soon as it is complete."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.images.builder.apptainer import seeds
from toolkit.images.builder.apptainer.protocol import WHOLE
from toolkit.images.builder.apptainer.tasks import TaskPlan

if TYPE_CHECKING:
    from toolkit.images.builder.apptainer.layered import LayeredBuild


@dataclass
class Collector:
    """The layers of one run of the sandbox.

    Each is kept as soon as it is complete, so that a build that fails or is killed later has not
    been in vain.
    """

    build: LayeredBuild
    plan: TaskPlan
    products: Path
    taken: int = 0
    has_products: bool = False

    def collect(self) -> None:
        """Keep what is complete."""
        for path, link in list(self.plan.layers.items())[self.taken :]:
            whole = Path(f"{path}{WHOLE}")
            if not whole.exists():
                break
            if link.products:
                self._collect_products()
            entries = self.build.entries
            facts = {"products": entries.products} if link.products else {}
            if link is self.build.chain.links[-1]:
                facts |= seeds.facts_of(link, entries.used)
            self.build.copy(entries.keep_next(whole, facts))
            self.taken += 1
        self._collect_products()

    def _collect_products(self) -> None:
        build, whole = self.build, Path(f"{self.products}{WHOLE}")
        if self.has_products or not self.plan.compiles or not whole.exists():
            return
        if len(build.layers) < len(build.chain.common):
            return  # the layer that it was compiled on is still being packed
        copy = build.place.output / "products-kept"
        shutil.copytree(self.products, copy, symlinks=True)  # later steps see the original
        build.entries.keep_products(copy)
        self.has_products = True
