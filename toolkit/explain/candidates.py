"""Find the few lines that a regular expression can match, so that it need not try all. Pure.

Eight thousand ranks print hundreds of thousands of lines. Nearly every signature has words that a
line must hold, and looking for a word takes a hundredth of the time of a search.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

try:
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # before Python 3.11
    import sre_parse as parser

_SHORTEST = 3  # characters of a word that is worth looking for
_DOTLESS = "\N{LATIN SMALL LETTER DOTLESS I}"  # is an i to `re.IGNORECASE`, not to `casefold`


def _fold(text: str) -> str:
    return text.casefold().replace(_DOTLESS, "i")


class Candidates:
    """Lines in which the words of regular expressions are looked for.

    The ranks of a job print many lines that are equal; each is examined once.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """Join the lines into one text, in which a word is looked for fastest."""
        places: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            places.setdefault(text, []).append(number)
        folded = [_fold(text).replace("\n", " ") for text in places]
        self._texts, self._places = list(places), list(places.values())
        self._joined = "\n".join(folded)
        self._starts = [0, *accumulate(len(text) + 1 for text in folded)][:-1]

    def search(self, patterns: Iterable[re.Pattern[str]]) -> Iterator[tuple[int, re.Match[str]]]:
        """Yield the number of each line that a pattern matches, with the first pattern's match."""
        known = [(pattern, self._indexes(pattern)) for pattern in patterns]
        matches: dict[int, re.Match[str]] = {}
        for index in set[int]().union(*(indexes for _, indexes in known)):
            text = self._texts[index]
            hits = (pattern.search(text) for pattern, indexes in known if index in indexes)
            if match := next(filter(None, hits), None):
                matches |= dict.fromkeys(self._places[index], match)
        yield from sorted(matches.items(), key=lambda pair: pair[0])

    def _indexes(self, pattern: re.Pattern[str]) -> set[int] | range:
        words = words_of(pattern.pattern)
        if not words:
            return range(len(self._texts))
        return {index for word in words for index in self._texts_with(word)}

    def _texts_with(self, word: str) -> Iterator[int]:
        at = self._joined.find(word)
        while at >= 0:
            index = bisect_right(self._starts, at) - 1
            yield index
            if index + 1 == len(self._starts):
                return
            at = self._joined.find(word, self._starts[index + 1])


@lru_cache(maxsize=1024)
def words_of(pattern: str) -> tuple[str, ...]:
    """Return words of which each text that a pattern matches has one, in the case of `casefold`.

    Empty if there are no such words, or none that is long enough.
    """
    return _best(parser.parse(pattern))


def _best(items: Iterable[Any]) -> tuple[str, ...]:
    """Return the words of that part of a sequence whose shortest word is the longest."""
    parts: list[tuple[str, ...]] = []
    word = ""
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL" and 10 < argument < 128:
            word += chr(argument)
            continue
        parts.append((word,))
        word = ""
        parts.append(_inside(name, argument))
    parts.append((word,))
    best = max(parts, key=lambda words: min(map(len, words), default=0))
    return tuple(map(_fold, best)) if min(map(len, best), default=0) >= _SHORTEST else ()


def _inside(name: str, argument: Any) -> tuple[str, ...]:
    if name == "SUBPATTERN":
        return _best(argument[-1])
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] > 0:
        return _best(argument[2])
    if name == "ATOMIC_GROUP":
        return _best(argument)
    if name == "BRANCH":
        branches = [_best(branch) for branch in argument[1]]
        return tuple(word for words in branches for word in words) if all(branches) else ()
    return ()
