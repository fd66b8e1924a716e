"""Rules about what is in the image: its CUDA, and the modules that the script needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from toolkit.config import package_directory
from toolkit.errors import (
    ImportsMissingError,
    ScriptMissingError,
    ShapeError,
    ToolkitError,
    nearest,
)
from toolkit.files import read_toml
from toolkit.model.base import Model
from toolkit.model.case import Case, Import
from toolkit.model.image import Manifest, Python
from toolkit.model.image import Packages as ImagePackages
from toolkit.quoting import shell_words
from toolkit.units import compare

_READ = "the script was read, not run"
_MOST_NAMES = 8  # modules that a message names


def driver(case: Case) -> Iterator[ToolkitError]:
    """Require that the nodes' NVIDIA driver runs the image's CUDA, and that the image has CUDA.

    With an older driver programs fail with CUDA's errors 803 and 804. What `toolkit image verify
    --site` found on the nodes themselves counts where the site's file has no driver.
    """
    if not case.job.most_gpus:
        return
    manifest, has = expected_manifest(case), case.site.driver
    if manifest is None:
        return
    from toolkit.images.recipe import catalogue  # only where GPUs are asked for

    if catalogue.is_for_cpus(manifest):
        yield ShapeError(
            f"GPUs were asked for ({case.job.most_gpus} per node), "
            f"and the frameworks of {manifest.name} are built for CPUs",
            place=case.job.gpu_option,
            next_step="an image with CUDA: toolkit image list",
            source="its manifest",
            is_warning=True,
        )
        return
    version = catalogue.find_cuda(manifest)
    needed = catalogue.find_oldest_driver(version) if version else None
    if has and needed and compare(has, needed[0]) < 0:
        compat = "; it has the compat package, with which data-center GPUs run it"
        yield ShapeError(
            f"CUDA {version} of the image needs NVIDIA's driver {needed[0]} or newer, "
            f"the nodes have {has}{compat if catalogue.has_compat(manifest) else ''}",
            place="--image",
            next_step="an image with an older CUDA: toolkit image search ngc",
            source=f"{needed[1]}; driver: {case.site.cited}",
            is_warning=catalogue.has_compat(manifest),
        )
        return
    for verdict in manifest.verified:
        if (verdict.name, verdict.site, verdict.outcome) == ("driver", case.site.name, "failed"):
            yield ShapeError(
                verdict.detail,
                place="--image",
                next_step="another image, or verify it again: toolkit image verify",
                source=f"toolkit image verify, {verdict.when}",
            )
            return


def expected_manifest(case: Case) -> Manifest | None:
    """Return the image's manifest, or what a recipe that is not built here says of GPUs."""
    if case.manifest or not case.image.is_recipe:
        return case.manifest
    return _of_recipe(str(case.job.image))


@lru_cache
def _of_recipe(name: str) -> Manifest | None:
    from toolkit.images.recipe import library

    plan = library.load(name)
    if not plan.gpu_code:
        return None
    return Manifest(
        name=plan.name,
        sif_id="",
        size=0,
        recipe_hash="",
        built="",
        gpu_code={"its recipe": plan.gpu_code},
        packages=ImagePackages(pip={"nvidia-cuda-runtime": plan.cuda}),
    )


def gpu_code(case: Case) -> Iterator[ToolkitError]:
    """Require code in the image for the GPUs that the job would get.

    Without it programs fail with "no kernel image is available for execution on the device".
    """
    manifest = expected_manifest(case) if case.job.most_gpus else None
    if manifest is None:
        return
    from toolkit.images.recipe import catalogue

    live, written = case.partition, case.written
    gpu = case.job.gpu_type or (live and live.gpu_type) or (written and written.gpu) or ""
    known = catalogue.find_capability(gpu)
    if known is None:
        return
    capability, source = known
    codes = manifest.gpu_code.items()
    lacking = [name for name, code in codes if not catalogue.runs_on(code, capability)]
    if not lacking:
        return
    architecture = f"sm_{capability.replace('.', '')}"
    kind = case.site.cited if live is None or not live.gpu_type else "sinfo"
    has = "; ".join(f"{name} has {', '.join(manifest.gpu_code[name])}" for name in lacking)
    fitting = _recipes_for(capability, manifest)
    yield ShapeError(
        f"{manifest.name} has no code for {gpu} ({architecture}): {has}",
        place="--image",
        next_step=f"--image {fitting[0]}, which has"
        if fitting
        else f"an image that is compiled for {architecture}: toolkit image list",
        source=f"{source}; GPU: {kind}",
    )


def _recipes_for(capability: str, manifest: Manifest) -> list[str]:
    from toolkit.images.recipe import catalogue, library
    from toolkit.images.recipe.names import list_recipes

    plans = {name: library.load(name) for name in list_recipes()}
    own = plans.get(manifest.name)
    needed = {"horovod", "ray", "tensorflow", "torch"}
    needed &= own.brings if own else {*manifest.frameworks}
    fitting = [
        (len(plan.brings), name)
        for name, plan in plans.items()
        if catalogue.runs_on(plan.gpu_code, capability) and needed <= plan.brings
    ]
    return [name for _, name in sorted(fitting)]


def imports(case: Case) -> Iterator[ToolkitError]:
    """Require every module that each run of the script imports."""
    manifest, python, doubt = case.manifest, case.python, case.source.doubt
    noun = f"{case.noun} {manifest.name}" if manifest else case.noun
    there = {*(manifest.frameworks if manifest else ())}
    there |= {*python.modules} if python and python.modules else {*sys.stdlib_module_names}
    missing = [each for each in case.source.needed if each.name not in there]
    if not missing:
        return
    if python is None or not python.modules:
        name = manifest.name if manifest and case.is_sif else ""
        yield ImportsMissingError(
            f"it is not known whether the {noun} has {_listed(each.name for each in missing)}: "
            "its modules were never recorded",
            place="imports",
            next_step=f"toolkit image verify {name} records them" if name else None,
            source=_READ,
            is_warning=True,
        )
        return
    packages = list(dict.fromkeys(filter(None, map(find_package, missing))))
    places = (f"{each.name} ({each.file}, line {each.line})" for each in missing)
    yield ImportsMissingError(
        f"the {noun} has no {_listed(places)}",
        place="imports",
        next_step=_installation(case, packages, python) if packages else None,
        details=_notes(case, packages),
        source=doubt or _READ,
        is_warning=bool(doubt),
    )


def program(case: Case) -> Iterator[ToolkitError]:
    """Require the program of the ranks, or the one that runs their script, on the image's PATH."""
    name, manifest, launcher = case.command[0], case.manifest, case.launcher
    if launcher is not None and launcher.is_internal:  # it starts programs of ours
        return
    if manifest is None or not manifest.programs or "/" in name or name in manifest.programs:
        return
    if case.job.most_gpus and name.startswith("nvidia-"):  # the driver's, which --nv shows
        return
    close = nearest(name, manifest.programs)
    yield ScriptMissingError(
        f"the image {manifest.name} has no program {name} on its PATH",
        place="SCRIPT",
        choices=(close,) if close else (),
        value=name,
        next_step=f"an image with {name}, or its path in the image",
        source="its manifest",
        is_warning=bool(case.binds)
        or any("PATH" in variable for variable in (*case.site.environment, *case.job.env)),
    )


def _notes(case: Case, packages: Sequence[str]) -> list[str]:
    notes = ["if it is your own code: --env PYTHONPATH=DIRECTORY says where it is"]
    if packages and case.is_sif:
        notes += ["[[steps]]", 'block = "pip"', f"packages = {json.dumps(packages)}"]
    return notes


def _installation(case: Case, packages: Sequence[str], python: Python) -> str:
    if case.noun == "environment":
        return shell_words([python.path, "-m", "pip", "install", *packages])
    if not case.is_sif or case.manifest is None:
        return f"an image with {_listed(packages)}"
    name, recipe = case.manifest.name, case.manifest.command.rpartition(" ")[2]
    if recipe.endswith(".toml"):
        return f"add the step below to {recipe}, then toolkit image build {recipe}"
    words = [word for package in packages for word in ("--pip", package)]
    made = shell_words(["toolkit", "image", "new", f"{name}-more", "--from", name, *words])
    return f"{made}; toolkit image build {name}-more.toml; then --image {name}-more"


def _listed(names: Iterable[str]) -> str:
    first, *others = [*names]
    shown, rest = [first, *others[: _MOST_NAMES - 1]], len(others) - _MOST_NAMES + 1
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


class Packages(Model, frozen=True, kw_only=True):
    """The content of ``packages.toml``: the packages that bring modules, where names differ.

    Attributes:
        own: names that people give modules of their own.
        modules: module -> ``distribution`` on the index, and the ``source`` of that.
    """

    own: tuple[str, ...]
    modules: dict[str, dict[str, str]]


@lru_cache
def read_packages() -> Packages:
    """Return the content of the file."""
    return read_toml(package_directory("rules") / "packages.toml", Packages)


def find_package(needed: Import) -> str:
    """Return what pip is asked for; empty: the user's own code, or nothing that pip has."""
    known, parts = read_packages(), needed.within.split(".")
    for count in range(len(parts), 1, -1):  # several packages share the name google
        if package := known.modules.get(".".join(parts[:count])):
            return package["distribution"]
    name = needed.name
    if package := known.modules.get(name):
        return package["distribution"]
    is_own = name in known.own or name in sys.stdlib_module_names or name.startswith("_")
    return "" if is_own else name.replace("_", "-")
