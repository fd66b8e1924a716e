"""Checks of a joined workshop: what keeps a participant from the first accuracy."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolkit import scripts
from toolkit.checks import Result, check, failed, from_error, passed, unchecked, warned
from toolkit.errors import ToolkitError
from toolkit.images.store import store
from toolkit.planning.case import gather
from toolkit.planning.plan import decide
from toolkit.planning.settings import Layer, chosen, find_cluster
from toolkit.text import one_line
from toolkit.units import human_size
from toolkit.workshops.join import Membership
from toolkit.workshops.results import leave

_LEAST_ROOM = 200 << 20
_ASK = "ask the instructor"


@check("images", "the images of the workshop, unchanged and readable")
def images(member: Membership) -> Iterator[Result]:
    """Check that each image that runs would take is the workshop's."""
    for name in member.contents.workshop.images:
        try:
            image = store.find(name, [member.source / "images"])
            yield _examine_image(member, image)
        except ToolkitError as error:
            yield from_error(error)


def _examine_image(member: Membership, image: store.StoredImage) -> Result:
    if f"images/{image.name}.sif" not in member.contents.files:  # of an earlier version's archive
        return passed(image.name)
    own = member.source / "images" / f"{image.name}.sif"
    # An image of the user is a copy of the workshop's if it has its id.
    id_of_copy = image.manifest.sif_id if image.manifest else ""
    if Path(image.path) == own or store.whole_header(own).sif_id == id_of_copy:
        return passed(f"{image.name}, {human_size(own.stat().st_size)}")
    step = f"export TOOLKIT_IMAGES={member.source}/images"
    return failed(f"{image.path} is not the workshop's {image.name}, and is taken before it", step)


@check("jobs", "Slurm answers, and would take each exercise")
def jobs(member: Membership) -> Iterator[Result]:
    """Plan each exercise, and let sbatch test the script, as it tests a submission.

    It refuses a partition, an account or a reservation that this user cannot use.
    """
    try:
        cluster = find_cluster(chosen(member.directory).site)
        cluster.client.partitions()  # unlike --version, it asks the controller
    except ToolkitError as error:
        yield from_error(error)
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
            yield passed(f"{name}, on site {cluster.site.name}")
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


CHECKS = (images, jobs, room, results)


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
