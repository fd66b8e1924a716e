"""Names, docstrings, comments, messages and help texts use the field's words.

The rules are in CONTRIBUTING.md ("How we write English"). A word is on this list if it is never right: each has a
plain word that says what is meant. The reason for a finding, and the word to write, is in ``WORDS``,
``NAMES`` or ``OPENINGS``.
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

# What prose must not say, and what to write.
WORDS = {
    r"who(so)?ever": "the caller, the user",
    r"(no|some)body('s)?": "no user, unset; a user, the caller",
    r"one's": "the user's, its",
    r"unwell": "unhealthy",
    r"all is well": "correct, no problem",
    r"end(s|ed|ing)? (well|badly|otherwise)": "succeed, fail",
    r"lend(s|ing)?|lent|loans?": "mount, provide; host configuration",
    r"mend(s|ed|ing)?": "fix",
    r"wish(es|ed)?": "options",
    r"told|said": "given, reported, printed; the thing itself",
    r"pieces?": "chunk, part, block output",
    r"things?": "the noun: entry, file, value",
    r"anew": "again",
    r"worded|in words": "as text, message",
    r"look(s|ed|ing)? (at|whether)": "examine, read, check",
    r"stands? (there|here|in|at|on|where|before|behind|beside)": "is, is written",
    r"(user|caller|you) stands?": "current directory",
    r"(came|come|comes) to": "result",
    r"(that|which) (is|are) none": "is not a",
    r"nowhere|hither|thither|thereby|whereby|whilst|amongst": "a plain word",
    r"all that is (known|asked)": "facts, requested options",
    r"what (is|was) (asked|told|said|known|wanted|meant|lent|there|found)": "the noun",
    # American English, as the APIs around us.
    r"(be)?(behaviour|colour|favour|honour|neighbour|labour)(s|ed|ing)?": "-or",
    r"(un)?(initial|serial|normal|recogn|organ|summar|minim|optim|synchron|priorit|special)is(e[sd]?|ing|ation)": "-ize",
    r"analys(e[sd]?|ing)|centre[sd]?|licences?|artefacts?|programmes?|cheques?|grey": "American spelling",
}

# Names that say nothing anywhere, whole or as a part between underscores or capitals.
NAMES = {
    "found": "the thing itself: partitions, image, probe_result",
    "said": "message, answer, output",
    "told": "probe_answer, given, reported",
    "look": "probe, read_facts, check",
    "looked": "host_facts",
    "looking": "host_facts",
    "seen": "the thing itself; visited",
    "wish": "options",
    "wishes": "options",
    "kept": "cache entry, cached",
    "loan": "host_config",
    "lend": "mount, provide",
    "lent": "host_config, mounts",
    "piece": "block output, chunk",
    "pieces": "block outputs, chunks",
    "thing": "entry, value",
    "things": "entries, values",
    "ways": "launch modes",
    "unwell": "unhealthy",
    "whoever": "user, caller",
    "nobody": "unset",
    "somebody": "user, caller",
    "mend": "fix",
    "mended": "fixed",
    "worded": "message",
    "wording": "message",
}
# Those that are right as a part (`here` in `adhere`, `here_document`), but not alone.
WHOLE_NAMES = {
    "one": "the noun: node, file, job",
    "here": "cwd",
    "inside": "runtime",
    "way": "mode, method",
    "work": "the noun: tasks, directory",
}

# First words of a docstring's first line. A function's is an imperative verb (ruff's D401); a class's and
# a module's is a noun phrase.
OPENINGS = {
    "What": "the noun",
    "Whether": "Return whether",
    "How": "the noun",
    "Why": "the reason for",
    "Where": "the place, the directory",
    "Who": "the noun",
    "Those": "the noun",
    "Everything": "the noun",
    "Anything": "the noun",
    "Something": "the noun",
    "Tell": "Return, Report",
    "Say": "Return, Print",
    "Look": "Check, Read",
}

PROSE = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in WORDS), re.IGNORECASE)


def prose_findings(text: str) -> list[str]:
    """Return the listed words of a text, with what to write."""
    findings = []
    for match in PROSE.finditer(text):
        word = match.group()
        advice = next(
            advice
            for pattern, advice in WORDS.items()
            if re.fullmatch(pattern, word, re.IGNORECASE)
        )
        findings.append(f'"{word}": {advice}')
    return findings


def name_findings(name: str) -> list[str]:
    """Return the listed words that a name has, with what to write."""
    if name.lower() in WHOLE_NAMES:
        return [f"name {name}: {WHOLE_NAMES[name.lower()]}"]
    parts = re.findall(r"[a-z]+|[A-Z][a-z]*", name)
    return [f"name {name}: {NAMES[part.lower()]}" for part in parts if part.lower() in NAMES]


def opening_findings(docstring: str) -> list[str]:
    """Return what is wrong with the first word of a docstring."""
    first = (re.match(r"\W*(\w+)", docstring) or [""] * 2)[1]
    return [f"docstring begins with {first}: {OPENINGS[first]}"] if first in OPENINGS else []


def bound_names(node: ast.AST) -> Iterator[str]:
    """Return the names that a node of the tree gives to something."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name


def docstring_of(node: ast.AST) -> str | None:
    """Return the docstring of a node that can have one."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(node)
    return None


def findings(source: str) -> list[tuple[int, str]]:
    """Return the line and the advice of each finding in the source of a module."""
    result: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        docstring = docstring_of(node)
        if docstring is not None:
            result.update((line, text) for text in opening_findings(docstring))
        for name in bound_names(node):
            result.update((line, text) for text in name_findings(name))
        # Messages and docstrings have spaces; keys, commands and patterns of one word are skipped.
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and " " in text and text not in RENDERED:
            result.update((line, finding) for finding in prose_findings(text))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            result.update((token.start[0], text) for text in prose_findings(token.string))
    return sorted(result)


def modules() -> list[str]:
    """Return the paths of all modules that the list holds for."""
    return sorted(
        path
        for room in ("toolkit", "benchmarks", "tools")
        for file in (ROOT / room).rglob("*.py")
        if not (path := str(file.relative_to(ROOT))).startswith(UNCHANGED)
    )


def all_findings(paths: list[str]) -> list[str]:
    """Return the findings of some modules, each as FILE:LINE: advice."""
    return [
        f"{path}:{line}: {advice}"
        for path in paths
        for line, advice in findings((ROOT / path).read_text(encoding="utf-8"))
    ]


def test_every_module_uses_the_words_of_the_field():
    unfinished = all_findings(modules())
    assert not unfinished, "\n".join(unfinished)
