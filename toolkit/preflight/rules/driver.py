"""The nodes' NVIDIA driver runs the image's CUDA: an older one ends in CUDA's errors 803 and 804. And GPUs are of use to the image."""

from __future__ import annotations

from toolkit.errors import ShapeError
from toolkit.images.recipe import cuda
from toolkit.preflight.model import Case, Finding
from toolkit.versions import compare


def look(case: Case) -> list[Finding]:
    if case.manifest is None or not case.job.most_gpus:
        return []
    if cuda.for_cpus(case.manifest):
        asked = f"GPUs were asked for ({case.job.most_gpus} per node)"
        cause = f"{asked}, and the frameworks of {case.manifest.name} are built for CPUs"
        return [
            Finding(
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


def _version(case: Case) -> list[Finding]:
    assert case.manifest is not None
    version, has = cuda.version(case.manifest), case.site.driver
    needed = cuda.oldest_driver(version) if version else None
    if not has or needed is None or compare(has, needed[0]) >= 0:
        return []
    cause = f"CUDA {version} of the image needs NVIDIA's driver {needed[0]} or newer, the nodes have {has}"
    if cuda.compat(case.manifest):
        cause += "; it has the compat package, with which data-centre GPUs run it"
    error = ShapeError(
        cause,
        place="--image",
        next_step=f"an image with an older CUDA: toolkit image search 'driver<={has}'",
    )
    return [
        Finding(error, f"{needed[1]}; driver: {case.source}", stops=not cuda.compat(case.manifest))
    ]


def _verified(case: Case) -> list[Finding]:
    """What `toolkit image verify --site` has found on the nodes themselves."""
    assert case.manifest is not None
    for verdict in case.manifest.verified:
        if (verdict.name, verdict.site, verdict.outcome) == ("driver", case.site.name, "failed"):
            error = ShapeError(
                verdict.detail,
                place="--image",
                next_step="another image, or verify it anew: toolkit image verify",
            )
            return [Finding(error, f"toolkit image verify, {verdict.when}")]
    return []
