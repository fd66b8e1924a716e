"""Checks of a joined workshop: what keeps a participant from the first accuracy."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from toolkit import scripts
from toolkit.checks import Result, check, failed, from_error, passed, unchecked, warned
from toolkit.errors import ToolkitError
from toolkit.images.lockfile.files import read_lock
from toolkit.images.store import store
from toolkit.images.store.provenance import hash_lock
from toolkit.planning.case import gather
from toolkit.planning.plan import decide
from toolkit.planning.settings import Cluster, Layer, chosen, find_cluster
from toolkit.text import one_line
from toolkit.units import human_size
from toolkit.workshops.join import Membership
from toolkit.workshops.results import leave

_LEAST_ROOM = 200 << 20
_ASK = "ask the instructor"


@lru_cache(maxsize=1)
def reach(directory: Path) -> Cluster | ToolkitError:
    """Return the cluster of a joined directory, or why it cannot be reached."""
    try:
        cluster = find_cluster(chosen(directory).site)
        cluster.client.partitions()  # unlike --version, it asks the controller
    except ToolkitError as error:
        return error
    return cluster


@check("images", "the images of the workshop, unchanged and readable")
def images(member: Membership) -> Iterator[Result]:
    """Check that each image that runs would take is the workshop's."""
    for name, lock_file in member.contents.workshop.images.items():
        try:
            image = store.find(name, [member.source / "images"])
            Path(image.path).open("rb").close()
            yield _examine_image(member, image, lock_file)
        except ToolkitError as error:
            yield from_error(error)
        except OSError as error:
            yield failed(f"{name} cannot be read: {error.strerror}", f"{_ASK}: {member.source}")


def _examine_image(member: Membership, image: store.StoredImage, lock_file: str) -> Result:
    name, manifest = image.name, image.manifest
    packed = member.contents.files.get(f"images/{name}.sif")
    if packed is not None:
        size = Path(image.path).stat().st_size
        own = member.source / "images" / f"{name}.sif"
        is_own = size == packed.size and Path(image.path) == own
        # An image of the user is a copy of the workshop's if it has its id.
        if not is_own and size == packed.size and manifest is not None:
            is_own = store.whole_header(own).sif_id == manifest.sif_id
        if is_own:
            return passed(f"{name}, {human_size(size)}")
        step = f"export TOOLKIT_IMAGES={member.source}/images"
        return failed(f"{image.path} is not the workshop's {name}, and is taken before it", step)
    if not lock_file:
        return passed(name)
    lock = read_lock(member.source / "locks" / f"{name}.lock")
    if manifest is not None and manifest.locked == hash_lock(lock):
        return passed(f"{name}, built from the workshop's lock")
    step = f"toolkit image build {name} --locked, with {member.source}/locks/{name}.lock"
    return failed(f"{name} was not built from the lock of the workshop", step)


@check("slurm", "Slurm answers")
def slurm(member: Membership) -> Result:
    """Check that the site's Slurm can be reached."""
    cluster = reach(member.directory)
    if isinstance(cluster, ToolkitError):
        return from_error(cluster)
    return passed(f"site {cluster.site.name}")


@check("jobs", "Slurm would take each exercise")
def jobs(member: Membership) -> Iterator[Result]:
    """Plan each exercise, and let sbatch test the script, as it tests a submission.

    It refuses a partition, an account or a reservation that this user cannot use.
    """
    cluster = reach(member.directory)
    if isinstance(cluster, ToolkitError):
        yield unchecked("Slurm does not answer")
        return
    for name in member.joined.exercises:
        if not (member.directory / name / "job.toml").is_file():
            continue
        try:
            text = scripts.script(decide(gather(name, Layer("flag", {}), member.directory)))
        except ToolkitError as error:
            yield from map(from_error, getattr(error, "findings", ()) or (error,))
            continue
        with tempfile.NamedTemporaryFile("w", dir=member.directory, suffix=".sbatch") as stream:
            stream.write(text)
            stream.flush()
            answer = cluster.client.ask("sbatch", "--test-only", stream.name)
        if answer.ok:
            start = re.search(r"to start at (\S{10,25})", answer.stderr)
            yield passed(f"{name}: {f'could start at {start[1]}' if start else 'accepted'}")
        else:
            yield failed(f"Slurm would refuse {name}: {one_line(' '.join(answer.tail(2)))}", _ASK)


@check("room", "there is room for the runs")
def room(member: Membership) -> Result:
    """Check the free space where the runs will be."""
    left = shutil.disk_usage(member.directory).free
    text = f"{human_size(left)} in {member.directory}"
    if left >= _LEAST_ROOM:
        return passed(text)
    return failed(f"only {text}", "remove files, or join in a directory with more room")


@check("results", "results can be left for the instructor", severity="warning")
def results(member: Membership) -> Result:
    """Check the file in the shared directory, if the participant consented."""
    wanted = member.contents.workshop.results
    if not member.joined.results:
        if not wanted:
            return unchecked("the workshop collects none")
        return warned("results are not shared", "to share them, join again with --share-results")
    try:
        leave(member.directory)
    except ToolkitError as error:
        return from_error(error)
    return passed(f"states and accuracies are left in {wanted}")


CHECKS = (images, slurm, jobs, room, results)


def examine(member: Membership) -> Iterator[Result]:
    """Make the checks in their order."""
    before = Path.cwd()
    os.chdir(member.directory)  # its settings name the directory of images
    try:
        for check in CHECKS:
            try:
                yield from check(member)
            except ToolkitError as error:
                yield unchecked(error.cause)._replace(name=check.name)
    finally:
        os.chdir(before)
