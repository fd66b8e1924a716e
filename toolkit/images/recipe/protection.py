"""Protect the packages that an image was verified with from later steps of pip. Pure.

These packages become constraints of pip, in the versions that are installed when a step begins: so
a base of any kind is protected, and a definition means the same without us. A step replaces a
package only on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from toolkit.images.recipe.block import BlockOutput
from toolkit.images.recipe.names import normalize_name
from toolkit.images.recipe.quoting import quote_word, quote_words
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


def parse_name(requirement: str) -> str:
    """Return which distribution a requirement names; empty for an address or a file."""
    match = _NAME.match(requirement.strip())
    if match is None:
        return ""
    rest = requirement.strip()[match.end() :].lstrip()
    is_place = rest.startswith((":", "/", "+")) or match[0].endswith(_FILES)
    return "" if is_place else normalize_name(match[0])


def parse_names(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the distributions that requirements name."""
    return tuple(
        dict.fromkeys(name for requirement in requirements if (name := parse_name(requirement)))
    )


def protect(outputs: Sequence[BlockOutput], *, has_python: bool) -> tuple[BlockOutput, ...]:
    """Return the outputs of a recipe, in which steps of pip keep the packages of earlier steps.

    Args:
        outputs: of the blocks, in the order of the image.
        has_python: the base has a Python of its own, and so perhaps frameworks.
    """
    protected: dict[str, None] = dict.fromkeys(FRAMEWORKS if has_python else ())
    index, result = "", []
    for output in outputs:
        result.append(
            _guarded(output, [name for name in protected if name not in output.replaces], index)
        )
        protected |= dict.fromkeys(output.brings)
        index = output.index or index
    return tuple(result)


def _guarded(output: BlockOutput, protected: Sequence[str], index: str) -> BlockOutput:
    """Return a step of pip with its constraints; another step, and the first, as it is."""
    if not output.requirements or not protected:
        return output
    pattern = "|".join(re.escape(name).replace(r"\-", "[-_.]") for name in protected)
    others = "" if output.replaces else "${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"
    is_companion = not set(parse_names(output.requirements)).isdisjoint(COMPANIONS)
    asked = index if is_companion and not output.index else ""
    return replace(
        output,
        lines=(
            "# What the image is verified for stays as it is.",
            f"mkdir -p {CONSTRAINTS.rpartition('/')[0]}",
            f"pip list --format=freeze | grep -iE {quote_word(f'^({pattern})==')} "
            f"> {CONSTRAINTS} || true",
            f'export PIP_CONSTRAINT="{CONSTRAINTS}{others}"',
            *(("# From where torch is from: elsewhere are builds for another.",) if asked else ()),
            *(f"{_from(line, asked)} || {_explained(output)}" for line in output.lines),
        ),
    )


def _from(line: str, index: str) -> str:
    """Return a command of pip that asks a further index, if there is one, with few retries."""
    options = f"--retries 2 --extra-index-url {quote_word(index)} " if index else ""
    return line.replace("pip install ", f"pip install {options}", 1)


def _explained(output: BlockOutput) -> str:
    """Return what a step does when pip has failed: it prints which versions would fit."""
    wanted = quote_word(f"{CONFLICT}{', '.join(output.requirements)}")
    free = quote_words(
        name for requirement in output.requirements if (name := parse_name(requirement))
    )
    say = quote_word(f"s/^Would install /{FITS}/p")
    fits = f"pip install --dry-run {free} | sed -n {say}; " if free else ""
    return f"{{ echo {wanted}; {fits}exit 1; }}"


def apply_replacements(steps: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the steps of a recipe with replacements in the place of the packages they replace.

    Steps that build on such a package come later in the recipe, and so are built again.

    Raises:
        BadDataError: A step replaces a package that it does not bring.
    """
    done: list[dict[str, Any]] = []
    for number, step in enumerate(map(dict, steps)):
        names = step.get("replaces", ())
        if step.get("block") != "pip" or not isinstance(names, list | tuple) or not names:
            done.append(step)
            continue
        _require_brought(step, number)
        for name in map(normalize_name, names):
            _replace(done, step, name)
        if step["packages"]:
            done.insert(_before_compiled(done), step) if step["replaces"] else done.append(step)
    return tuple(done)


def _require_brought(step: Mapping[str, Any], number: int) -> None:
    brought = parse_names(map(str, step.get("packages", ())))
    wrong = next(
        (name for name in step["replaces"] if normalize_name(str(name)) not in brought), None
    )
    if wrong is not None:
        text = f"{wrong!r} is replaced by nothing: packages must name it, with its new version"
        raise BadDataError(text, f"steps[{number}].replaces", brought, str(wrong))


def _replace(done: list[dict[str, Any]], step: dict[str, Any], name: str) -> None:
    """Move a requirement to where an earlier step has the one that it replaces, if one does."""
    old = next(
        (
            earlier
            for earlier in done
            if earlier.get("block") == "pip"
            and name in parse_names(map(str, earlier.get("packages", ())))
        ),
        None,
    )
    if old is None:
        return
    new = next(package for package in step["packages"] if parse_name(str(package)) == name)
    old["packages"] = [
        new if parse_name(str(package)) == name else package for package in old["packages"]
    ]
    old["replaces"] = [*old.get("replaces", ()), name]
    if "index" in step:
        old["index"] = step["index"]
    step["packages"] = [package for package in step["packages"] if package != new]
    step["replaces"] = [
        package for package in step["replaces"] if normalize_name(str(package)) != name
    ]


def _before_compiled(done: Sequence[Mapping[str, Any]]) -> int:
    """Return the place before the first step that compiles against frameworks, else the end."""
    return next(
        (number for number, step in enumerate(done) if step.get("block") == "horovod"), len(done)
    )


def list_replaced(steps: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the packages that steps replace, from whatever source these came."""
    return frozenset(
        normalize_name(str(name))
        for step in steps
        if step.get("block") == "pip"
        for name in step.get("replaces", ())
    )
