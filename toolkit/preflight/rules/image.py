"""Rules about the image: its architecture, its CUDA, its lock."""

from __future__ import annotations

from toolkit.checks import Result, check, from_error
from toolkit.errors import ImageMissingError, ShapeError
from toolkit.images.recipe import cuda
from toolkit.model.case import Case
from toolkit.units import compare


@check("architecture", "image and nodes of one architecture", order=160)
def check_architecture(case: Case) -> list[Result]:
    """Check that image and nodes have one architecture.

    Programs of another fail with `Exec format error`.
    """
    image = case.host.architecture
    nodes, source, is_certain = _nodes(case)
    if not image or not nodes or image == nodes:
        return []
    place = case.partition_name or case.site.name
    cause = f"the image is for {image}, the nodes of {place} are {nodes}"
    fitting = ", ".join(_fitting(case, image))
    step = f"an image for {nodes}" + (f", or one of the partitions {fitting}" if fitting else "")
    return [
        from_error(ShapeError(cause, place="--image", next_step=step), source, stops=is_certain)
    ]


def _fitting(case: Case, image: str) -> list[str]:
    """Return partitions whose nodes have the image's architecture, and enough GPUs."""
    live = {partition.name for partition in case.facts.partitions} or set(case.site.partitions)
    least = case.job.most_gpus
    return [
        name
        for name, each in case.site.partitions.items()
        if each.arch == image and each.batch and each.gpus >= least and name in live
    ][:4]


def _nodes(case: Case) -> tuple[str, str, bool]:
    """Return the nodes' architecture, its source, and whether it is certain."""
    if case.written is not None:
        return case.written.arch, case.site.cited, True
    if case.site.access == "local-cluster":
        return case.host.machine, "the nodes are this machine", True
    return case.host.machine, "guessed: as this machine's", False


@check("driver", "the nodes' driver runs the image's CUDA", order=170)
def check_driver(case: Case) -> list[Result]:
    """Check that the nodes' NVIDIA driver runs the image's CUDA, and that the image can use GPUs.

    With an older driver programs fail with CUDA's errors 803 and 804.
    """
    if case.manifest is None or not case.job.most_gpus:
        return []
    if cuda.is_for_cpus(case.manifest):
        asked = f"GPUs were asked for ({case.job.most_gpus} per node)"
        cause = f"{asked}, and the frameworks of {case.manifest.name} are built for CPUs"
        return [
            from_error(
                ShapeError(
                    cause,
                    place=case.job.gpu_option,
                    next_step="an image with CUDA: toolkit image list",
                ),
                "its manifest",
                stops=False,
            )
        ]
    return _version(case) or _verified(case)


def _version(case: Case) -> list[Result]:
    assert case.manifest is not None
    version, has = cuda.find_version(case.manifest), case.site.driver
    needed = cuda.find_oldest_driver(version) if version else None
    if not has or needed is None or compare(has, needed[0]) >= 0:
        return []
    cause = f"CUDA {version} of the image needs NVIDIA's driver {needed[0]} or newer"
    cause += f", the nodes have {has}"
    if cuda.has_compat(case.manifest):
        cause += "; it has the compat package, with which data-center GPUs run it"
    error = ShapeError(
        cause,
        place="--image",
        next_step=f"an image with an older CUDA: toolkit image search 'driver<={has}'",
    )
    return [
        from_error(
            error,
            f"{needed[1]}; driver: {case.site.cited}",
            stops=not cuda.has_compat(case.manifest),
        )
    ]


def _verified(case: Case) -> list[Result]:
    """Return what `toolkit image verify --site` found on the nodes themselves."""
    assert case.manifest is not None
    for verdict in case.manifest.verified:
        if (verdict.name, verdict.site, verdict.outcome) == ("driver", case.site.name, "failed"):
            error = ShapeError(
                verdict.detail,
                place="--image",
                next_step="another image, or verify it again: toolkit image verify",
            )
            return [from_error(error, f"toolkit image verify, {verdict.when}")]
    return []


@check("locked", "the image is what was locked", order=180)
def check_locked(case: Case) -> list[Result]:
    """Check that the image is what its manifest and the recipe's lock say."""
    host, manifest = case.host, case.manifest
    if host.foreign_manifest:
        cause = f"{host.image} was changed: the manifest beside it is of another file"
        error = ImageMissingError(
            cause, place="--image", next_step="build or pull it again, or remove the manifest"
        )
        return [from_error(error, "its manifest")]
    if manifest is None or not manifest.locked or not host.lock or manifest.locked == host.lock:
        return []
    cause = (
        f"{manifest.name} was built from another lock than recipes/{manifest.name}.lock is today"
    )
    error = ImageMissingError(
        cause, place="--image", next_step=f"toolkit image build {manifest.name} --locked"
    )
    return [from_error(error, "its manifest", stops=False)]
