"""Choose what one build in layers takes from the caches, and keep what it makes.

Without a lock, an entry is used when its key fits: the step, and all before it, are as they were. A
lock also names the digest of every layer. So a locked build uses an entry of any earlier build,
locked or not, that has these very bytes, as long as everything below it was as locked, too. What a
locked build had to make itself is kept under a key of the lock, and used again by it.

An entry is hashed again before it gets into an image, beside everything else that a build does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from toolkit.images.build.apptainer.cache import BASES, LAYERS, WHEELS, Cache, CacheEntry
from toolkit.images.build.wanted import hash_lock
from toolkit.images.recipe.chain import Chain
from toolkit.model.image import Layer
from toolkit.model.lock import Lock


class DamagedError(Exception):
    """An entry of the caches is not what was put there; it has been removed."""


class Entries:
    """The entries that a build uses, from its base upwards.

    Attributes:
        used: the base, and the layers on it, as far as the build has come.
        unequal: names of those that are not as they were locked.
        products: the digest of what the build stage made; empty where nobody took any.
    """

    def __init__(
        self, cache: Cache, chain: Chain, lock: Lock | None = None, *, fresh: bool = False
    ) -> None:
        self.cache, self.chain, self.lock, self.fresh = cache, chain, lock, fresh
        self.used: list[CacheEntry] = []
        self.unequal: list[str] = []
        self.products = ""
        self._lock_hash = hash_lock(lock)
        self._checks: list[tuple[CacheEntry, Future[bool]]] = []
        self._beside = ThreadPoolExecutor(1)

    def next_kept(self) -> CacheEntry | None:
        """Take the entry that comes next, if there is one that may be used."""
        if self.fresh:
            return None
        kind, _, key = self._next()
        for candidate, digest in self._candidates(key, self._locked_digest()):
            found = self.cache.find(kind, candidate)
            if found and digest in ("", found.note.digest):
                self.cache.touch(found)
                self._check_beside(found)
                self._take(found)
                return found
        return None

    def keep_next(self, made: Path, facts: dict[str, str] | None = None) -> CacheEntry:
        """Keep what was made for the place that comes next, and take it."""
        kind, name, key = self._next()
        weighed = self.cache.weighed(made)
        if self.lock:
            locked = weighed[1] == self._locked_digest() and not self.unequal
            key = _joined(key, weighed[1]) if locked else self._own_key(key)
        kept = self.cache.keep(
            kind, key, made, about=name, facts=facts, anew=self.fresh, weighed=weighed
        )
        self._take(kept)
        return kept

    def _next(self) -> tuple[str, str, str]:
        if not self.used:
            return BASES, self.chain.base.detail(), self.chain.base_key
        link = self.chain.links[len(self.used) - 1]
        return LAYERS, link.name, link.key

    def _take(self, kept: CacheEntry) -> None:
        expected = self._locked_digest()
        if expected and kept.note.digest != expected:
            self.unequal.append(self.name)
        self.used.append(kept)
        self.products = (
            kept.note.facts.get("products", self.products) if kept.kind == LAYERS else self.products
        )

    @property
    def name(self) -> str:
        """The name of the place that comes next."""
        return self.chain.links[len(self.used) - 1].name if self.used else "base"

    def _locked_digest(self) -> str:
        known = self.lock.layers if self.lock else ()
        return known[len(self.used)].sha256 if len(self.used) < len(known) else ""

    def _candidates(self, key: str, expected: str) -> Iterator[tuple[str, str]]:
        """Keys to look under, and the digest that an entry must have; empty: any."""
        if not self.lock:
            yield key, ""
            return
        if expected and not self.unequal:
            yield key, expected
            yield _joined(key, expected), expected
        yield self._own_key(key), ""

    def _own_key(self, key: str) -> str:
        """Of what this lock gives on top of what is there."""
        return _joined(key, self._lock_hash, *(one.note.digest for one in self.used))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The base and every layer, for a manifest."""
        names = ("base", *(link.name for link in self.chain.links))
        return tuple(
            Layer(name=name, sha256=kept.note.digest)
            for name, kept in zip(names, self.used, strict=False)
        )

    def compiled_on(self) -> str:
        """What tells apart that on which the build stage runs: the base and the common layers."""
        return _joined(*(one.note.digest for one in self.used[: len(self.chain.common) + 1]))

    def may_have_products(self) -> bool:
        """Return whether it is worth knowing the common layers before it is decided what has to be compiled."""
        return bool(self.chain.build) and any(
            self.cache.find(WHEELS, key) for key, _ in self._product_candidates()
        )

    def kept_products(self) -> CacheEntry | None:
        """Take what was compiled before on these very layers; also where everything else is built afresh."""
        for key, digest in self._product_candidates():
            found = self.cache.find(WHEELS, key)
            if found and (
                found.note.digest == digest
                if digest
                else found.note.facts.get("on") == self.compiled_on()
            ):
                self.cache.touch(found)
                self.products = found.note.digest
                return found
        return None

    def keep_products(self, made: Path) -> CacheEntry:
        """Keep what the build stage made."""
        key = self._product_key() if self.lock else self.chain.products_key
        kept = self.cache.keep(
            WHEELS,
            key,
            made,
            about=self.chain.build[-1].name,
            facts={"on": self.compiled_on()},
            anew=True,
        )
        self.products = kept.note.digest
        return kept

    def _product_candidates(self) -> Iterator[tuple[str, str]]:
        if not self.lock:
            yield self.chain.products_key, ""
            return
        if self.lock.products:
            yield self.chain.products_key, self.lock.products
            yield self._product_key(), self.lock.products
        yield self._product_key(), ""

    def _product_key(self) -> str:
        return _joined(self.chain.products_key, self._lock_hash)

    def _check_beside(self, kept: CacheEntry) -> None:
        self._checks.append((kept, self._beside.submit(self.cache.is_undamaged, kept)))

    def check(self) -> None:
        """Wait until everything that was taken has been hashed.

        Raises:
            DamagedError: something is damaged; it has been removed from the caches.
        """
        damaged = [kept for kept, check in self._checks if not check.result()]
        self._checks.clear()
        for kept in damaged:
            self.cache.drop(kept)
        if damaged:
            raise DamagedError(", ".join(kept.note.about for kept in damaged))


def _joined(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
