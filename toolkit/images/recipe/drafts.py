"""The first draft of a recipe, from a base, features and packages.

Pure but for the names of shipped files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from toolkit.images.recipe import catalogue
from toolkit.images.recipe.catalogue import Release
from toolkit.images.recipe.names import list_recipes
from toolkit.model.base import toml_value


def draft(
    name: str, origin: str, wanted_features: Iterable[str], packages: Iterable[str], *, cwd: str
) -> str:
    """Return the text of a recipe.

    Args:
        name: of the recipe.
        origin: the base of the image: a recipe's name or file, a SIF, an NGC release, or any
            reference of a registry.
        wanted_features: ``horovod``, and names of features.
        packages: requirements for pip.
        cwd: the directory that a relative path of a SIF is from.
    """
    wanted = tuple(dict.fromkeys(wanted_features))
    release = catalogue.find_by_name(origin)
    features = [feature for feature in wanted if feature != "horovod"]
    lines = [
        f"# After a change: toolkit image build {name}.toml",
        f"summary = {toml_value(', '.join((origin, *wanted)))}",
    ]
    is_recipe = origin in list_recipes() or origin.endswith(".toml")
    lines += [f"extends = {toml_value(origin)}"] if is_recipe else []
    lines += [f"features = {toml_value(features)}"] if features else []
    lines += [] if is_recipe else _base(origin, release, cwd)
    steps: list[dict[str, object]] = []
    if "horovod" in wanted:
        framework = release.framework if release else "pytorch"
        operations = ["mpi", "gloo", *(["nccl"] if release else [])]
        steps.append({"block": "horovod", "frameworks": [framework], "operations": operations})
    if packages := list(packages):
        steps.append({"block": "pip", "name": "extra", "packages": packages})
    return "\n".join((*lines, *(line for step in steps for line in format_step(step)))) + "\n"


def format_step(step: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of a step of a recipe; a long list has a line for each item."""
    yield from ("", "[[steps]]")
    for key, value in step.items():
        if isinstance(value, list | tuple) and len(value) > 3:
            yield f"{key} = ["
            yield from (f"    {toml_value(item)}," for item in value)
            yield "]"
        else:
            yield f"{key} = {toml_value(value)}"


def _base(origin: str, release: Release | None, cwd: str) -> list[str]:
    if origin.endswith(".sif"):
        return [
            "",
            "[base]",
            'kind = "localimage"',
            f"path = {toml_value(str(PurePosixPath(cwd) / origin))}",
        ]
    if release is not None:
        space = [
            "",
            "# In MB; NVIDIA's images are large.",
            "[space]",
            "image = 12000",
            "build = 50000",
        ]
        return [
            "",
            "[base]",
            'kind = "ngc"',
            f"framework = {toml_value(release.framework)}",
            f"release = {toml_value(release.release)}",
            *space,
        ]
    reference = origin.removeprefix("docker://")
    has = (
        "# What it has already, so that it is not built again: any of compilers, horovod, nccl, "
        "openmpi, python, ray, tensorflow, torch"
    )
    return [
        "",
        "[base]",
        'kind = "docker"',
        f"image = {toml_value(reference)}",
        has,
        'has = ["python"]',
    ]
