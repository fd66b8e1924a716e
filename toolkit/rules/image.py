"""Rules about the image: its architecture, its CUDA, its lock, and the modules that it needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from toolkit.errors import ImageMissingError, ImportsMissingError, ShapeError, ToolkitError
from toolkit.model.case import Case, Rule
from toolkit.model.image import Python
from toolkit.model.source import Import
from toolkit.quoting import shell_words
from toolkit.units import compare

_READ = "the script was read, not run"
_MOST_NAMES = 8  # modules that a message names


def architecture(case: Case) -> Iterator[ToolkitError]:
    """Require an image and nodes of one architecture: others fail with `Exec format error`."""
    image, nodes, source = case.host.architecture, case.host.machine, "guessed: as this machine's"
    if case.written is not None:
        nodes, source = case.written.arch, case.site.cited
    elif case.site.access == "local-cluster":
        source = "the nodes are this machine"
    if not image or not nodes or image == nodes:
        return
    fitting = ", ".join(_fitting(case, image))
    yield ShapeError(
        f"the image is for {image}, "
        f"the nodes of {case.partition_name or case.site.name} are {nodes}",
        place="--image",
        next_step=f"an image for {nodes}"
        + (f", or one of the partitions {fitting}" if fitting else ""),
        source=source,
        is_warning=source.startswith("guessed"),
    )


def _fitting(case: Case, image: str) -> list[str]:
    """Return partitions whose nodes have the image's architecture, and enough GPUs."""
    live = {partition.name for partition in case.facts.partitions} or set(case.site.partitions)
    least = case.job.most_gpus
    return [
        name
        for name, each in case.site.partitions.items()
        if each.arch == image and each.batch and each.gpus >= least and name in live
    ][:4]


def driver(case: Case) -> Iterator[ToolkitError]:
    """Require that the nodes' NVIDIA driver runs the image's CUDA, and that the image has CUDA.

    With an older driver programs fail with CUDA's errors 803 and 804. What `toolkit image verify
    --site` found on the nodes themselves counts where the site's file has no driver.
    """
    manifest, has = case.manifest, case.site.driver
    if manifest is None or not case.job.most_gpus:
        return
    from toolkit.images.recipe import cuda  # only where GPUs are asked for

    if cuda.is_for_cpus(manifest):
        yield ShapeError(
            f"GPUs were asked for ({case.job.most_gpus} per node), "
            f"and the frameworks of {manifest.name} are built for CPUs",
            place=case.job.gpu_option,
            next_step="an image with CUDA: toolkit image list",
            source="its manifest",
            is_warning=True,
        )
        return
    version = cuda.find_version(manifest)
    needed = cuda.find_oldest_driver(version) if version else None
    if has and needed and compare(has, needed[0]) < 0:
        compat = "; it has the compat package, with which data-center GPUs run it"
        yield ShapeError(
            f"CUDA {version} of the image needs NVIDIA's driver {needed[0]} or newer, "
            f"the nodes have {has}{compat if cuda.has_compat(manifest) else ''}",
            place="--image",
            next_step=f"an image with an older CUDA: toolkit image search 'driver<={has}'",
            source=f"{needed[1]}; driver: {case.site.cited}",
            is_warning=cuda.has_compat(manifest),
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


def locked(case: Case) -> Iterator[ToolkitError]:
    """Require an image that is what its manifest says, and warn if its recipe's lock is newer."""
    host, manifest = case.host, case.manifest
    if host.foreign_manifest:
        yield ImageMissingError(
            f"{host.image} was changed: the manifest beside it is of another file",
            place="--image",
            next_step="build or pull it again, or remove the manifest",
            source="its manifest",
        )
    elif manifest and manifest.locked and host.lock not in ("", manifest.locked):
        name = manifest.name
        yield ImageMissingError(
            f"{name} was built from another lock than recipes/{name}.lock is today",
            place="--image",
            next_step=f"toolkit image build {name} --locked",
            source="its manifest",
            is_warning=True,
        )


def imports(case: Case) -> Iterator[ToolkitError]:
    """Require every module that each run of the script imports, and warn of the others."""
    needed, python = case.source.needed, case.python
    there = {*(case.manifest.frameworks if case.manifest else ())}
    if python is None or not python.modules:
        yield from _unknown(case, {*there, *sys.stdlib_module_names})
        return
    there |= {*python.modules}
    missing = [each for each in needed if each.name not in there]
    certain = [each for each in missing if each.is_certain]
    own = [each for each in certain if each.elsewhere and "/site-packages" not in each.elsewhere]
    for each in own:
        variable = shell_words([f"PYTHONPATH={each.elsewhere}"])
        yield _finding(
            case,
            f"{each.name} (imported in {each.file}, line {each.line}) is in {each.elsewhere}, "
            "which the ranks do not search",
            f"--env {variable}",
        )
    if lacking := [each for each in certain if each not in own]:
        yield _lacking(case, lacking, python)
    if possible := [each for each in missing if not each.is_certain]:
        yield ImportsMissingError(
            f"some runs of the script import what the {_noun(case)} does not have: "
            f"{_listed([_placed(each) for each in possible])}",
            place="imports",
            source=_READ,
            is_warning=True,
        )


def _finding(case: Case, cause: str, step: str | None, details: Sequence[str] = ()) -> ToolkitError:
    """Return the finding about an import that every run executes; a warning if there is doubt."""
    doubt = case.source.doubt
    return ImportsMissingError(
        cause,
        place="imports",
        next_step=step,
        details=details,
        source=doubt or _READ,
        is_warning=bool(doubt),
    )


def _unknown(case: Case, there: set[str]) -> Iterator[ToolkitError]:
    """Warn that nothing was checked although there are modules to check."""
    needed = case.source.needed
    unsure = [each.name for each in needed if each.is_certain and each.name not in there]
    name = case.manifest.name if case.manifest and case.host.image else ""
    if unsure:
        yield ImportsMissingError(
            f"it is not known whether the {_noun(case)} has {_listed(unsure)}: "
            "its modules were never recorded",
            place="imports",
            next_step=f"toolkit image verify {name} records them" if name else None,
            source=_READ,
            is_warning=True,
        )


def _lacking(case: Case, missing: Sequence[Import], python: Python) -> ToolkitError:
    """Return the finding about modules that have to be installed."""
    from toolkit.rules.packages import explain_standard, find_package, is_known

    notes = [note for each in missing if (note := explain_standard(each.name, python.version))]
    notes += [
        f"your {each.elsewhere} has {each.name}; the ranks do not see it"
        for each in missing
        if each.elsewhere
    ]
    if unsure := [each.name for each in missing if not is_known(each.name)]:
        verb = "is" if len(unsure) == 1 else "are"
        advice = "--env PYTHONPATH=DIRECTORY says where it is"
        notes.append(f"if {_listed(unsure)} {verb} your own code: {advice}")
    packages = list(dict.fromkeys(filter(None, map(find_package, missing))))
    if packages and case.is_sif:
        notes += ["[[steps]]", 'block = "pip"', f"packages = {json.dumps(packages)}"]
    where = _listed([_placed(each) for each in missing])
    step = _installation(case, packages, python) if packages else None
    return _finding(case, f"the {_noun(case)} has no {where}", step, notes)


def _installation(case: Case, packages: Sequence[str], python: Python) -> str:
    """Return the commands that bring packages to where the ranks run."""
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


def _noun(case: Case) -> str:
    """Return how messages name what the ranks run in."""
    return f"{case.noun} {case.manifest.name}" if case.manifest else case.noun


def _placed(needed: Import) -> str:
    return f"{needed.name} ({needed.file}, line {needed.line})"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else shown


RULES = (
    Rule("imports", "modules that the script imports", imports),
    Rule("architecture", "image and nodes of one architecture", architecture),
    Rule("driver", "the nodes' driver runs the image's CUDA", driver),
    Rule("locked", "the image is what was locked", locked),
)
