"""Choose the cache entries of one build in layers, and keep what it makes.

Without a lock, an entry is used when its key fits: the step, and all before it, are unchanged. A
lock also names the digest of every layer. So a locked build uses an entry of any earlier build,
locked or not, that has exactly these bytes, as long as everything below it has the locked bytes,
too. What a locked build had to make itself is kept under a key of the lock, and used by it again.

The caches are trusted as the images beside them are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolkit.images.recipe.digests import hash_texts
from toolkit.images.recipe.lock import Lock
from toolkit.images.recipe.plan import Plan
from toolkit.images.store.cache import (
    BASES,
    LAYERS,
    WHEELS,
    Cache,
    CacheEntry,
    measure,
)
from toolkit.images.store.provenance import hash_lock
from toolkit.model.image import Layer


class Entries:
    """The entries of a build, from its base upwards.

    Attributes:
        used: The base and the layers on it, as far as the build has come.
        unequal: The names of those that differ from the lock.
        products: The digest of what the build stage made; empty if no step used it.
    """

    def __init__(
        self, cache: Cache, plan: Plan, lock: Lock | None = None, *, fresh: bool = False
    ) -> None:
        self.cache, self.plan, self.lock, self.fresh = cache, plan, lock, fresh
        self.used: list[CacheEntry] = []
        self.unequal: list[str] = []
        self.products = ""
        self._lock_hash = hash_lock(lock)

    def take_next(self) -> CacheEntry | None:
        """Take the next entry from the cache, if there is one that may be used."""
        if self.fresh:
            return None
        kind, _, key = self._next()
        for candidate, digest in self._candidates(key, self._locked_digest()):
            entry = self.cache.find(kind, candidate)
            if entry and digest in ("", entry.note.digest):
                self.cache.touch(entry)
                self._take(entry)
                return entry
        return None

    def keep_next(self, made: Path, facts: dict[str, str] | None = None) -> CacheEntry:
        """Keep what was made as the next entry, and take it."""
        kind, name, key = self._next()
        measured = measure(made)
        if self.lock:
            is_locked = measured[1] == self._locked_digest() and not self.unequal
            key = hash_texts(key, measured[1]) if is_locked else self._own_key(key)
        entry = self.cache.keep(
            kind, key, made, about=name, facts=facts, replace=self.fresh, measured=measured
        )
        self._take(entry)
        return entry

    def _next(self) -> tuple[str, str, str]:
        if not self.used:
            return BASES, self.plan.base.output().detail, self.plan.base_key
        step = self.plan.steps[len(self.used) - 1]
        return LAYERS, step.name, step.key

    def _take(self, entry: CacheEntry) -> None:
        expected = self._locked_digest()
        if expected and entry.note.digest != expected:
            self.unequal.append(self.next_name)
        self.used.append(entry)
        if entry.kind == LAYERS:
            self.products = entry.note.facts.get("products", self.products)

    @property
    def next_name(self) -> str:
        """The name of the next entry's step."""
        return self.plan.steps[len(self.used) - 1].name if self.used else "base"

    def _locked_digest(self) -> str:
        layers = self.lock.layers if self.lock else ()
        return layers[len(self.used)].sha256 if len(self.used) < len(layers) else ""

    def _candidates(self, key: str, expected: str) -> Iterator[tuple[str, str]]:
        """Yield keys, and the digest that an entry must have; empty if any will do."""
        if not self.lock:
            yield key, ""
            return
        if expected and not self.unequal:
            yield key, expected
            yield hash_texts(key, expected), expected
        yield self._own_key(key), ""

    def _own_key(self, key: str) -> str:
        """Return the key of what this lock makes on top of the current layers."""
        return hash_texts(key, self._lock_hash, *(entry.note.digest for entry in self.used))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The base and every layer, for a manifest."""
        names = ("base", *(step.name for step in self.plan.steps))
        return tuple(
            Layer(name=name, sha256=entry.note.digest)
            for name, entry in zip(names, self.used, strict=False)
        )

    def compiled_on(self) -> str:
        """Return what identifies the base and common layers, on which the build stage runs."""
        common = self.used[: len(self.plan.common) + 1]
        return hash_texts(*(entry.note.digest for entry in common))

    def may_have_products(self) -> bool:
        """Return whether knowing the common layers could spare the build stage."""
        return bool(self.plan.build) and any(
            self.cache.find(WHEELS, key) for key, _ in self._product_candidates()
        )

    def take_products(self) -> CacheEntry | None:
        """Take what was compiled before on exactly these layers, even in a fresh build."""
        for key, digest in self._product_candidates():
            entry = self.cache.find(WHEELS, key)
            if entry and (
                entry.note.digest == digest
                if digest
                else entry.note.facts.get("on") == self.compiled_on()
            ):
                self.cache.touch(entry)
                self.products = entry.note.digest
                return entry
        return None

    def keep_products(self, made: Path) -> None:
        """Keep what the build stage made."""
        key = self._product_key() if self.lock else self.plan.products_key
        about, facts = self.plan.build[-1].name, {"on": self.compiled_on()}
        entry = self.cache.keep(WHEELS, key, made, about=about, facts=facts, replace=True)
        self.products = entry.note.digest

    def _product_candidates(self) -> Iterator[tuple[str, str]]:
        if not self.lock:
            yield self.plan.products_key, ""
            return
        if self.lock.products:
            yield self.plan.products_key, self.lock.products
            yield self._product_key(), self.lock.products
        yield self._product_key(), ""

    def _product_key(self) -> str:
        return hash_texts(self.plan.products_key, self._lock_hash)
