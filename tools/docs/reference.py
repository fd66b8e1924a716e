"""The reference pages of the site, from the code that they describe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from inspect import formatannotation
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from toolkit.cli import main as cli
from toolkit.config import package_directory
from toolkit.explain.gather import rules
from toolkit.images.recipe import library
from toolkit.images.recipe.names import list_recipes
from toolkit.images.recipe.recipe import Recipe
from toolkit.launchers import LAUNCHERS, offered
from toolkit.lint.rules import RULES as LINT_RULES
from toolkit.model.base import Model
from toolkit.model.job import Job, Project
from toolkit.model.site import Site
from toolkit.runtimes import RUNTIMES
from toolkit.workshops.model import Workshop
from tools.docs import tested
from tools.docs.lint_cases import CASES, Case
from tools.docs.schemas import described

_FILES: Mapping[str, tuple[type[Model], str]] = {
    "job.toml": (
        Job,
        "`jobs/NAME/job.toml` has the options of a job; `toolkit run jobs/NAME` runs it.",
    ),
    "toolkit.toml": (
        Project,
        "`toolkit.toml` has options of `toolkit run` for a project, a user "
        "(`~/.config/toolkit`) or a machine (`/etc/toolkit`).",
    ),
    "A site's file": (
        Site,
        "`~/.config/toolkit/sites/NAME.toml` describes a cluster; `toolkit site init NAME` "
        "drafts it.",
    ),
    "workshop.toml": (
        Workshop,
        "`workshop.toml` describes a course: exercises, images, data and any option of a run.",
    ),
    "A recipe": (Recipe, "`recipes/NAME.toml`, or any path, lists the contents of an image."),
}
# The first paragraph of each page.
_ABOUT: Mapping[str, str] = {
    "files": "Keys, types and defaults are those of the JSON schemas that the files are checked "
    "by. `toolkit site schema` prints the schema of a site's file for editors.",
    "launchers": "`toolkit run --launcher NAME` chooses how ranks are started, `--runtime NAME` "
    "what they run in. Without them, the script's imports and the image decide.",
    "explain": "`toolkit explain` compares a failed run's logs, or a pasted log, with these "
    "rules. Text in braces is taken from the log. Each rule has logs that it must recognize; "
    "the first is shown.",
    "lint": "`toolkit lint` examines sbatch scripts with these rules. Each example is a script "
    "with the fault, and the nearest one without it.",
    "sites": "The site files that are shipped. `toolkit site show NAME` prints one with its rules.",
    "recipes": "The images that the toolkit can build: `toolkit image build NAME`.",
}


def pages() -> dict[str, str]:
    """Return the text of each generated page, by its path below docs/."""
    sites = {path.stem: path for path in sorted(package_directory("sites").glob("*.toml"))}
    recipes = {name: library.recipe_path(name) for name in list_recipes()}
    return {
        **_commands(),
        "reference/launchers.md": _launchers(),
        "reference/files.md": _files(),
        "reference/rules-of-explain.md": _failures(),
        "reference/rules-of-lint.md": _lint(),
        "reference/sites.md": _texts("Sites", _ABOUT["sites"], sites),
        "reference/recipes.md": _texts("Recipes", _ABOUT["recipes"], recipes),
        "reference/python.md": _PYTHON,
        "reference/tested.md": tested.page(),
    }


def _commands() -> dict[str, str]:
    """Return a page for each command: sphinx-click asks click itself for the options."""
    pages = {
        f"reference/commands/{name}.md": f"```{{eval-rst}}\n.. click:: toolkit.cli.{place}\n"
        f"   :prog: toolkit {name}\n   :nested: full\n```\n"
        for name, (place, _) in cli.cli.entries.items()
    }
    rows = (
        f"| [`toolkit {name}`](commands/{name}.md) | {summary} |"
        for name, (_, summary) in cli.cli.entries.items()
    )
    contents = "\n".join(f"commands/{name}" for name in cli.cli.entries)
    toctree = f"```{{toctree}}\n:hidden:\n\n{contents}\n```"
    index = _page(["# Commands", _table("Command", "Does", rows), toctree])
    return {**pages, "reference/commands.md": index}


def _table(left: str, right: str, rows: Iterable[str]) -> str:
    return "\n".join((f"| {left} | {right} |", "|---|---|", *rows))


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _launchers() -> str:
    launchers = (f"| `{name}` | {LAUNCHERS[name].about} |" for name in offered())
    runtimes = (f"| `{name}` | {runtime.about} |" for name, runtime in RUNTIMES.items())
    return _page(
        [
            "# Launchers and runtimes",
            _ABOUT["launchers"],
            _table("Launcher", "Starts", launchers),
            _table("Runtime", "Ranks run in", runtimes),
        ]
    )


def _files() -> str:
    parts = ["# Files in TOML", _ABOUT["files"]]
    for title, (model, text) in _FILES.items():
        schema = described(model)
        own = schema["$ref"].rpartition("/")[2]
        for name, definition in schema["$defs"].items():
            keys = _keys(definition, getattr(sys.modules[model.__module__], name))
            if name == own:
                parts += [f"## {title}", text, keys]
            elif definition.get("properties"):
                parts += [f"### {name}", definition.get("description", ""), keys]
    return _page(parts)


def _keys(definition: Mapping[str, Any], model: type[Model]) -> str:
    rows = ["| Key | Meaning | Type | Default |", "|---|---|---|---|"]
    needed, types = definition.get("required", ()), get_type_hints(model)
    for key, rule in definition["properties"].items():
        default = "required" if key in needed else _value(rule.get("default"))
        kind = re.sub(r"(\w+\.)+|, NoneType| \| None", "", formatannotation(types[key]))
        kind = re.sub(r"^(Optional|Union)\[(.*)\]$", r"\2", kind)
        about = _cell(rule.get("description", ""))
        rows.append(f"| `{key}` | {about} | `{_cell(kind)}` | {default} |")
    return "\n".join(rows)


def _value(value: object) -> str:
    return "" if value in (None, "", [], {}) else f"`{msgspec.json.encode(value).decode()}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _fence(text: str, language: str = "text") -> str:
    """Return a block whose fence is longer than any in the text."""
    ticks = "`" * 4
    return f"{ticks}{language}\n{text.strip(chr(10))}\n{ticks}"


def _failures() -> str:
    parts = ["# Rules of explain", _ABOUT["explain"]]
    for name, rule in sorted(rules().items()):
        source = f"({rule.sure}; source: {_plain(rule.source)})"
        steps = (f"{number}. {_plain(fix)}" for number, fix in enumerate(rule.fix, 1))
        parts += [
            f"## {name}",
            f"{_plain(rule.summary)}: {_plain(rule.cause)} {source}.",
            "\n".join(steps),
            *(_fence(example["log"]) for example in rule.examples[:1] if example.get("log")),
        ]
    return _page(parts)


def _plain(text: str) -> str:
    """Return text of the code as Markdown that shows it unchanged."""
    for mark in "\\`*_[]<>{}$|":
        text = text.replace(mark, f"\\{mark}")
    return text


def _lint() -> str:
    first: dict[str, Case] = {}
    for case in CASES:
        first.setdefault(case.rule, case)
    parts = ["# Rules of lint", _ABOUT["lint"]]
    for check in LINT_RULES:
        about = f"{_plain(check.about)}. {_plain(check.cause)}"
        parts += [f"## {check.name}", about.strip()]
        if check.fix:
            parts.append(f"Next step: {_plain(check.fix)}.")
        if check.name in first:
            bad, good = (_fence(_visible(text)) for text in first[check.name][1:3])
            parts += ["Fault:", bad, "Without it:", good]
    return _page(parts)


def _visible(script: str) -> str:
    """Return a script with its invisible characters as escapes."""
    return "".join(
        letter if letter in "\n\t" or letter.isprintable() else repr(letter)[1:-1]
        for letter in script
    )


def _texts(title: str, about: str, files: Mapping[str, Path]) -> str:
    parts = [f"# {title}", about]
    for name, path in files.items():
        parts += [f"## {name}", _fence(path.read_text(encoding="utf-8"), "toml")]
    return _page(parts)


_PYTHON = """# Python API

`toolkit.submit` calls a function on the nodes of a cluster and returns its result.

```{eval-rst}
.. autofunction:: toolkit.submit

.. automodule:: toolkit.errors
   :members:
   :show-inheritance:
```
"""
