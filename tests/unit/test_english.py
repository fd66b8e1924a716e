"""Names, docstrings, comments, messages and help texts use the field's words.

The rules are in CONTRIBUTING.md ("How we write English"). A word is on this list if it is never right: each has a
plain word that says what is meant, mostly the noun itself.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# Their text is copied into images: a changed word would change the hash of each recipe.
UNCHANGED = ("toolkit/images/checks/", "toolkit/scripts/templates/")

# Comments of rendered definitions: a changed word changes the hash of each recipe that has them, and
# its image would be built again.
RENDERED = (
    "# Nobody needs half an image after a power cut.",
    "# What was compiled before against the same things need not be compiled again.",
    "# So are TensorFlow's; and what it offers XLA is another thing since 2.12.",
)

# What prose must not say.
WORDS = (
    *("who(so)?ever", "(no|some)body('s)?", "one's", "unwell", "anew", "worded|in words"),
    *("all is well", "end(s|ed|ing)? (well|badly|otherwise)", "lend(s|ing)?|lent|loans?"),
    *("mend(s|ed|ing)?", "wish(es|ed)?", "told|said", "pieces?", "things?"),
    *("look(s|ed|ing)? (at|whether)", "stands? (there|here|in|at|on|where|before|behind|beside)"),
    *("(user|caller|you) stands?", "(came|come|comes) to", "(that|which) (is|are) none"),
    *("nowhere|hither|thither|thereby|whereby|whilst|amongst", "all that is (known|asked)"),
    "what (is|was) (asked|told|said|known|wanted|meant|lent|there|found)",
    # American English, as the APIs around us.
    "(be)?(behaviour|colour|favour|honour|neighbour|labour)(s|ed|ing)?",
    "(un)?(initial|serial|normal|recogn|organ|summar|minim|optim|synchron|priorit|special)is(e[sd]?|ing|ation)",
    "analys(e[sd]?|ing)|centre[sd]?|licences?|artefacts?|programmes?|cheques?|grey",
)
PROSE = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in WORDS), re.IGNORECASE)
# Parts of names, between underscores or capitals, that say nothing anywhere.
NAMES = {
    *"found said told look looked looking seen wish wishes kept loan lend lent piece pieces".split(),
    *"thing things ways unwell whoever nobody somebody mend mended worded wording".split(),
}
# Those that are right as a part (`here` in `adhere`, `here_document`), but not alone.
WHOLE_NAMES = {"one", "here", "inside", "way", "work"}
# First words of a docstring's first line. A function's is an imperative verb (ruff's D401); a class's and
# a module's is a noun phrase.
OPENINGS = set(
    "What Whether How Why Where Who Those Everything Anything Something Tell Say Look".split()
)


def bound_name(node: ast.AST) -> str:
    """Return the name that a node of the tree gives to something."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()):
            return name
    return ""


def findings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the word of each finding in the source of a module."""
    prose: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            opening = re.match(r"\W*(\w+)", ast.get_docstring(node) or "")
            if opening and opening[1] in OPENINGS:
                yield line, f"docstring begins with {opening[1]}"
        name = bound_name(node)
        parts = {part.lower() for part in re.findall(r"[a-z]+|[A-Z][a-z]*", name)}
        if name.lower() in WHOLE_NAMES or parts & NAMES:
            yield line, f"name {name}"
        # Messages and docstrings have spaces; keys, commands and patterns of one word are skipped.
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and " " in text and text not in RENDERED:
            prose.append((line, text))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    prose += [(each.start[0], each.string) for each in tokens if each.type == tokenize.COMMENT]
    yield from ((line, word[0]) for line, text in prose for word in PROSE.finditer(text))


def test_every_module_uses_the_words_of_the_field():
    paths = [
        path for room in ("toolkit", "benchmarks", "tools") for path in (ROOT / room).rglob("*.py")
    ]
    assert [
        f"{path}:{line}: {finding}"
        for path in paths
        if not str(path.relative_to(ROOT)).startswith(UNCHANGED)
        for line, finding in findings(path.read_text(encoding="utf-8"))
    ] == []
