"""The search index of the Korean pages: a noun is found with any particle after it."""

from __future__ import annotations

import json
import re

from sphinx.search import SearchLanguage

# Particles and endings of nouns and of verbs made of nouns. A word keeps at least two syllables.
_ENDING = (
    "(?:에서|으로|에)[는도]|[입합됩]니다|하(?:려면|세요|기)|에[게서]|으로|이[라나]"
    "|까지|부터|마다|보다|처럼|[은는이가을를의에로와과도만나]"
)
_STEM = rf"^([가-힣]{{2,}}?|[a-z0-9_]+)({_ENDING})$"


class SearchKorean(SearchLanguage):
    """Words without their particles, in the index and in what a reader types."""

    lang = "ko"
    language_name = "Korean"
    js_stemmer_code = f"""
var Stemmer = function () {{
  const ending = new RegExp({json.dumps(_STEM)});
  this.stemWord = (word) => word.replace(ending, "$1");
}};
"""
    _stem = re.compile(_STEM)

    def stem(self, word: str) -> str:
        """Return a word without its particle: 노드 for 노드를, slurm for slurm이."""
        return self._stem.sub(r"\1", word.lower())
