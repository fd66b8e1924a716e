"""Keep what an image was verified for: later steps of pip replace it only on purpose. Pure.

It becomes their constraints, in the versions that are installed when a step begins: so a base of
any kind is kept, and a definition means the same without us.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from toolkit.images.recipe.block import BlockOutput
from toolkit.images.recipe.words import word, words
from toolkit.model.base import BadDataError

CONSTRAINTS = "/opt/toolkit/constraints.txt"
CONFLICT = "toolkit-conflict: "  # begins the line that names what a step of pip could not install
FITS = "toolkit-fits: "  # begins the line that names what would fit
# Frameworks, and what is compiled against them, that a base may hold; only what is installed
# becomes a constraint.
FRAMEWORKS = (
    *(
        "torch",
        "torchvision",
        "torchaudio",
        "torchtext",
        "apex",
        "transformer-engine",
        "flash-attn",
        "torch-tensorrt",
    ),
    *(
        "tensorflow",
        "tensorflow-cpu",
        "tensorflow-gpu",
        "tf-keras",
        "jax",
        "jaxlib",
        "mxnet",
        "cupy",
    ),
    *("horovod", "ray", "mpi4py", "numpy"),
)
# Packages that come as builds for one build of torch, or bring such a package. They are taken from
# where torch is from: elsewhere the build for another CUDA has the same name.
COMPANIONS = (
    *(
        "torchvision",
        "torchaudio",
        "torchtext",
        "torchdata",
        "torchao",
        "torchcodec",
        "torchrec",
        "fbgemm-gpu",
    ),
    *(
        "timm",
        "open-clip-torch",
        "segmentation-models-pytorch",
        "lpips",
        "ultralytics",
        "easyocr",
        "facexlib",
    ),
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILES = (".whl", ".zip", ".tar.gz")


def normal(name: str) -> str:
    """Return a name of a distribution as the package index compares it."""
    return "-".join(filter(None, re.split(r"[-_.]", name.lower())))


def name_of(requirement: str) -> str:
    """Return which distribution a requirement names; empty for an address or a file."""
    found = _NAME.match(requirement.strip())
    if found is None:
        return ""
    rest = requirement.strip()[found.end() :].lstrip()
    is_place = rest.startswith((":", "/", "+")) or found[0].endswith(_FILES)
    return "" if is_place else normal(found[0])


def names_of(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the distributions that requirements name."""
    return tuple(dict.fromkeys(name for one in requirements if (name := name_of(one))))


def protect(outputs: Sequence[BlockOutput], *, has_python: bool) -> tuple[BlockOutput, ...]:
    """Return the steps of a recipe, of which those of pip keep what is there before them.

    Args:
        outputs: in the order of the image.
        has_python: the base has a Python of its own, and so perhaps frameworks.
    """
    kept: dict[str, None] = dict.fromkeys(FRAMEWORKS if has_python else ())
    index, found = "", []
    for output in outputs:
        found.append(
            _guarded(output, [name for name in kept if name not in output.replaces], index)
        )
        kept |= dict.fromkeys(output.brings)
        index = output.index or index
    return tuple(found)


def _guarded(output: BlockOutput, kept: Sequence[str], index: str) -> BlockOutput:
    """Return a step of pip with its constraints; another step, and the first, as it is."""
    if not output.requirements or not kept:
        return output
    pattern = "|".join(re.escape(name).replace(r"\-", "[-_.]") for name in kept)
    others = "" if output.replaces else "${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"
    is_companion = not set(names_of(output.requirements)).isdisjoint(COMPANIONS)
    asked = index if is_companion and not output.index else ""
    return replace(
        output,
        lines=(
            "# What the image is verified for stays as it is.",
            f"mkdir -p {CONSTRAINTS.rpartition('/')[0]}",
            f"pip list --format=freeze | grep -iE {word(f'^({pattern})==')} > {CONSTRAINTS} || true",
            f'export PIP_CONSTRAINT="{CONSTRAINTS}{others}"',
            *(("# From where torch is from: elsewhere are builds for another.",) if asked else ()),
            *(f"{_from(line, asked)} || {_explained(output)}" for line in output.lines),
        ),
    )


def _from(line: str, index: str) -> str:
    """Return a command of pip that asks a further index, if there is one; briefly if it is silent."""
    options = f"--retries 2 --extra-index-url {word(index)} " if index else ""
    return line.replace("pip install ", f"pip install {options}", 1)


def _explained(output: BlockOutput) -> str:
    """Return what a step does when pip has failed: it says which versions would fit."""
    wanted = word(f"{CONFLICT}{', '.join(output.requirements)}")
    free = words(name for one in output.requirements if (name := name_of(one)))
    say = word(f"s/^Would install /{FITS}/p")
    fits = f"pip install --dry-run {free} | sed -n {say}; " if free else ""
    return f"{{ echo {wanted}; {fits}exit 1; }}"


def with_replacements(steps: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the steps of a recipe with what they replace in the place of what is replaced.

    What was built on it comes later in the recipe, and so is built again.

    Raises:
        BadDataError: a step replaces what it does not bring.
    """
    done: list[dict[str, Any]] = []
    for number, step in enumerate(map(dict, steps)):
        names = step.get("replaces", ())
        if step.get("block") != "pip" or not isinstance(names, list | tuple) or not names:
            done.append(step)
            continue
        _require_brought(step, number)
        for name in map(normal, names):
            _replace(done, step, name)
        if step["packages"]:
            done.insert(_before_compiled(done), step) if step["replaces"] else done.append(step)
    return tuple(done)


def _require_brought(step: Mapping[str, Any], number: int) -> None:
    brought = names_of(map(str, step.get("packages", ())))
    wrong = next((name for name in step["replaces"] if normal(str(name)) not in brought), None)
    if wrong is not None:
        text = f"{wrong!r} is replaced by nothing: packages must name it, with its new version"
        raise BadDataError(text, f"steps[{number}].replaces", brought, str(wrong))


def _replace(done: list[dict[str, Any]], step: dict[str, Any], name: str) -> None:
    """Move a requirement to where an earlier step has the one that it replaces, if one does."""
    old = next(
        (
            one
            for one in done
            if one.get("block") == "pip" and name in names_of(map(str, one.get("packages", ())))
        ),
        None,
    )
    if old is None:
        return
    new = next(one for one in step["packages"] if name_of(str(one)) == name)
    old["packages"] = [new if name_of(str(one)) == name else one for one in old["packages"]]
    old["replaces"] = [*old.get("replaces", ()), name]
    if "index" in step:
        old["index"] = step["index"]
    step["packages"] = [one for one in step["packages"] if one != new]
    step["replaces"] = [one for one in step["replaces"] if normal(str(one)) != name]


def _before_compiled(done: Sequence[Mapping[str, Any]]) -> int:
    """Return the place before the first step that compiles against frameworks, else the end."""
    return next(
        (number for number, step in enumerate(done) if step.get("block") == "horovod"), len(done)
    )


def replaced(steps: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return what steps replace, wherever it came from."""
    return frozenset(
        normal(str(name))
        for step in steps
        if step.get("block") == "pip"
        for name in step.get("replaces", ())
    )
