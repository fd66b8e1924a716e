"""The rooms of the package, their layers and the imports between them: `make layers` draws them.

The layers are those of the contracts in pyproject.toml, which import-linter holds; the arrows are
read from the import graph. ARCHITECTURE.md has the picture.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import grimp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- drawn by `make layers` -->\n", "<!-- end -->\n"

Edges = Mapping[tuple[str, str], int]


def contract(name: str) -> list[list[str]]:
    """Return the layers of a contract, from the top; each is a list of rooms."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = [entry["layers"] for entry in contracts if entry["id"] == name]
    return [line.split(" | ") for line in layers]


def layers() -> list[list[str]]:
    """Return all layers from the top, with the rooms of images in the place of `images`."""
    rooms_of_images = [[f"images.{room}" for room in line] for line in contract("image-layers")]
    result: list[list[str]] = []
    for line in contract("layers"):
        result += rooms_of_images if line == ["images"] else [line]
    return result


def room_of(module: str) -> str | None:
    """Return the room of a module; None for the packages `toolkit` and `toolkit.images`."""
    parts = module.split(".")[1:]
    if not parts or parts == ["images"]:
        return None
    return ".".join(parts[:2]) if parts[0] == "images" else parts[0]


def graph() -> grimp.ImportGraph:
    """Return the import graph of the package, without imports that only type checkers read."""
    return grimp.build_graph("toolkit", exclude_type_checking_imports=True)


def edges(imports: grimp.ImportGraph) -> Counter[tuple[str, str]]:
    """Return how many imports lead from one room to another."""
    count: Counter[tuple[str, str]] = Counter()
    for module in imports.modules:
        for imported in imports.find_modules_directly_imported_by(module):
            pair = room_of(module), room_of(imported)
            if pair[0] and pair[1] and pair[0] != pair[1]:
                count[pair[0], pair[1]] += 1
    return count


def upward(imports: Edges) -> dict[tuple[str, str], int]:
    """Return the imports that do not lead downward."""
    level = {room: number for number, line in enumerate(layers()) for room in line}
    return {pair: count for pair, count in imports.items() if level[pair[0]] >= level[pair[1]]}


def reduced(imports: Edges) -> list[tuple[str, str]]:
    """Return the arrows to draw: those that no other way over several rooms replaces."""
    below: dict[str, set[str]] = defaultdict(set)
    rising = upward(imports)
    for importer, imported in imports:
        if (importer, imported) not in rising:
            below[importer].add(imported)
    reachable: dict[str, set[str]] = {}
    for line in reversed(layers()):
        for room in line:
            reachable[room] = below[room].union(*(reachable[lower] for lower in below[room]))
    return sorted(
        (importer, imported)
        for importer, direct in below.items()
        for imported in direct
        if not any(imported in reachable[other] for other in direct if other != imported)
    )


def picture(imports: Edges) -> str:
    """Return the layers and arrows as a Mermaid flowchart."""
    lines = ["```mermaid", "flowchart TD"]
    for number, line in enumerate(layers()):
        lines.append(f"  subgraph L{number}[ ]")
        lines += [f'    {room.replace(".", "_")}["{room}"]' for room in line]
        lines.append("  end")
    lines += [
        f"  {importer.replace('.', '_')} --> {imported.replace('.', '_')}"
        for importer, imported in reduced(imports)
    ]
    return "\n".join([*lines, "```", ""])


def main() -> int:
    """Draw the picture into ARCHITECTURE.md, and print the imports that run upward."""
    imports = edges(graph())
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:start] + picture(imports) + text[end:], encoding="utf-8")
    for (importer, imported), count in sorted(upward(imports).items()):
        print(f"upward: {importer} -> {imported}: {count} import{'s' if count != 1 else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
