"""The first draft of a recipe, from a base, features and packages.

Pure but for the names of shipped files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import PurePosixPath

from toolkit.errors import UnknownImageError, UsageError
from toolkit.images.recipe import catalogue
from toolkit.images.recipe.names import feature_names, recipe_names
from toolkit.model.catalogue import Release


def draft(
    name: str, origin: str, wanted_features: Iterable[str], packages: Iterable[str], *, cwd: str
) -> str:
    """Return the text of a recipe.

    Args:
        name: of the recipe.
        origin: the base of the image: a recipe's name, a SIF, an NGC release, or any reference of
            a registry.
        wanted_features: ``horovod``, and names of features.
        packages: requirements for pip.
        cwd: the directory that a relative path of a SIF is from.

    Raises:
        UsageError: A feature is unknown; names the nearest.
        UnknownImageError: The base is unknown; names the nearest.
    """
    wanted = tuple(dict.fromkeys(wanted_features))
    choices = ("horovod", *feature_names())
    wrong = next((feature for feature in wanted if feature not in choices), None)
    if wrong is not None:
        raise UsageError(
            f"there is no feature {wrong}",
            place="--with",
            choices=choices,
            value=wrong,
            next_step=f"one of {', '.join(choices)}",
        )
    release = catalogue.find_by_name(origin)
    features = [feature for feature in wanted if feature != "horovod"]
    lines = [
        f"# After a change: toolkit image build {name}.toml",
        f"summary = {json.dumps(_summary(origin, wanted), ensure_ascii=False)}",
    ]
    lines += [f"extends = {json.dumps(origin)}"] if origin in recipe_names() else []
    lines += [f"features = {json.dumps(features)}"] if features else []
    lines += [] if origin in recipe_names() else _base(origin, release, cwd)
    lines += _horovod(release) if "horovod" in wanted else []
    lines += _pip(tuple(packages))
    return "\n".join(lines) + "\n"


def _summary(origin: str, wanted_features: Iterable[str]) -> str:
    return f"{origin}{''.join(f', {feature}' for feature in wanted_features)}"


def _base(origin: str, release: Release | None, cwd: str) -> list[str]:
    if origin.endswith(".sif"):
        return [
            "",
            "[base]",
            'kind = "localimage"',
            f"path = {json.dumps(str(PurePosixPath(cwd) / origin), ensure_ascii=False)}",
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
            f"framework = {json.dumps(release.framework)}",
            f"release = {json.dumps(release.release)}",
            *space,
        ]
    reference = origin.removeprefix("docker://")
    if "/" not in reference and ":" not in reference:
        raise UnknownImageError(
            f"no recipe or release is called {origin}",
            place="--from",
            choices=(*recipe_names(), *(release.name for release in catalogue.releases())),
            value=origin,
            next_step="toolkit image search",
        )
    has = (
        "# What it has already, so that it is not built again: any of compilers, horovod, nccl, "
        "openmpi, python, ray, tensorflow, torch"
    )
    return [
        "",
        "[base]",
        'kind = "docker"',
        f"image = {json.dumps(reference)}",
        has,
        'has = ["python"]',
    ]


def _horovod(release: Release | None) -> list[str]:
    framework = release.framework if release else "pytorch"
    operations = ["mpi", "gloo", "nccl"] if release else ["mpi", "gloo"]
    return [
        "",
        "[[steps]]",
        'block = "horovod"',
        f"frameworks = {json.dumps([framework])}",
        f"operations = {json.dumps(operations)}",
    ]


def _pip(packages: tuple[str, ...]) -> list[str]:
    return (
        ["", "[[steps]]", 'block = "pip"', 'name = "extra"', f"packages = {json.dumps(packages)}"]
        if packages
        else []
    )
