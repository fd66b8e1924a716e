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

from toolkit.images.recipe.block import Step
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
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+!_-]*\Z")
# A name with its extras, versions or an address, and a condition.
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+(?:\[[^\]]*\])?)\s*(?:[<>=!~(@][^;]*)?(?P<marker>;.*)?\Z"
)
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


def override(
    steps: Sequence[Mapping[str, Any]], versions: Mapping[str, str]
) -> tuple[Mapping[str, Any], ...]:
    """Return the steps of a recipe, in which packages of pip have these versions.

    What is built on such a package comes later in the recipe, and so is built again.

    Args:
        steps: valid ones.
        versions: the recipe's ``[overrides]``, by name of the package.

    Raises:
        BadDataError: No step brings such a package, or its version is none.
    """
    packages = [name for step in steps if step["block"] == "pip" for name in step["packages"]]
    brought = parse_names(packages)
    for name, version in versions.items():
        if normalize_name(name) not in brought:
            text = f"no step of pip brings {name!r}; one of the base is replaced by `replaces`"
            raise BadDataError(text, f"overrides.{name}", brought, name)
        if not _VERSION.match(version):
            raise BadDataError(f"{version!r} is not a version", f"overrides.{name}")
    exact = {normalize_name(name): version for name, version in versions.items()}

    def pin(package: str) -> str:
        name = parse_name(package)
        if name not in exact:
            return package
        match = _REQUIREMENT.match(package.strip())
        if match is None:
            text = f"{package!r} cannot get another version: write it into the step"
            raise BadDataError(text, f"overrides.{name}")
        return f"{match['name']}=={exact[name]}{match['marker'] or ''}"

    return tuple(
        {**step, "packages": [pin(package) for package in step["packages"]]}
        if step["block"] == "pip" and exact
        else step
        for step in steps
    )


def replace_first(steps: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the steps, in which those that replace packages of the base come before Horovod.

    Raises:
        BadDataError: A step replaces what an earlier step brings.
    """
    brought = set[str]()
    for number, step in enumerate(steps):
        for late in brought & {normalize_name(name) for name in step.get("replaces", ())}:
            text = f"an earlier step brings {late}: name its new version in [overrides]"
            raise BadDataError(f"{text} of the recipe", f"steps[{number}].replaces")
        brought |= set(parse_names(step["packages"])) if step["block"] == "pip" else set()
    first = next((at for at, step in enumerate(steps) if step["block"] == "horovod"), len(steps))
    early = [step for step in steps[first:] if step.get("replaces")]
    return (*steps[:first], *early, *(step for step in steps[first:] if step not in early))


def protect(outputs: Sequence[Step], *, has_python: bool) -> tuple[Step, ...]:
    """Return the outputs of a recipe, in which steps of pip keep the packages of earlier steps.

    Args:
        outputs: of the blocks, in the order of the image.
        has_python: the base has a Python of its own, and so perhaps frameworks.
    """
    protected: dict[str, None] = dict.fromkeys(FRAMEWORKS if has_python else ())
    result = []
    for output in outputs:
        result.append(_guarded(output, [name for name in protected if name not in output.replaces]))
        protected |= dict.fromkeys(output.brings)
    return tuple(result)


def _guarded(output: Step, protected: Sequence[str]) -> Step:
    """Return a step of pip with its constraints; another step, and the first, as it is."""
    if not output.requirements or not protected:
        return output
    pattern = "|".join(re.escape(name).replace(r"\-", "[-_.]") for name in protected)
    others = "" if output.replaces else "${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"
    return replace(
        output,
        lines=(
            "# What the image is verified for stays as it is.",
            f"mkdir -p {CONSTRAINTS.rpartition('/')[0]}",
            f"pip list --format=freeze | grep -iE {quote_word(f'^({pattern})==')} "
            f"> {CONSTRAINTS} || true",
            f'export PIP_CONSTRAINT="{CONSTRAINTS}{others}"',
            f"{output.lines[0]} || {_explained(output)}",
            *output.lines[1:],
        ),
    )


def _explained(output: Step) -> str:
    """Return what a step does when pip has failed: it prints which versions would fit."""
    wanted = quote_word(f"{CONFLICT}{', '.join(output.requirements)}")
    free = quote_words(
        name for requirement in output.requirements if (name := parse_name(requirement))
    )
    say = quote_word(f"s/^Would install /{FITS}/p")
    fits = f"pip install --dry-run {free} | sed -n {say}; " if free else ""
    return f"{{ echo {wanted}; {fits}exit 1; }}"
