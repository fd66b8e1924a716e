"""Rules about the image: its architecture, its CUDA, its lock."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks import Rule
from toolkit.errors import ImageMissingError, ShapeError, ToolkitError
from toolkit.model.case import Case
from toolkit.units import compare


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


RULES = (
    Rule("architecture", "image and nodes of one architecture", architecture),
    Rule("driver", "the nodes' driver runs the image's CUDA", driver),
    Rule("locked", "the image is what was locked", locked),
)
