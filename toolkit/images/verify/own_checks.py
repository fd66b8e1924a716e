"""The checks that an image carries: their results in a log, and running them again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from msgspec.structs import replace

from toolkit.errors import BuildError
from toolkit.images.recipe.block import CHECKS
from toolkit.images.store import store
from toolkit.images.store.settings import run_in_image
from toolkit.images.store.store import StoredImage
from toolkit.images.verify.case import local_case
from toolkit.images.verify.checks.image_file import check_labels
from toolkit.model.image import Check
from toolkit.shell import Progress

_TIMEOUT = 900.0  # seconds for all checks together
_CHECK = re.compile(r"toolkit-check: (?P<name>\S+) (?P<outcome>passed|failed): (?P<detail>.*)")
_FACT = re.compile(r"toolkit-fact: (?P<kind>framework|mpi) (?P<value>.+)")
_RANK = re.compile(
    r"\[\d+(?:,\d+)?\]<std(?:out|err)>: ?"
)  # horovodrun's prefix of its ranks' lines


@dataclass
class Results:
    """The results that the checks of an image printed."""

    checks: list[Check] = field(default_factory=list)
    frameworks: dict[str, str] = field(default_factory=dict)
    mpi: list[str] = field(default_factory=list)

    def feed(self, line: str) -> Check | None:
        """Take a line; return the check that it reports, if it reports one."""
        result = _CHECK.match(line)
        if result:
            check = Check(
                name=result["name"],
                passed=result["outcome"] == "passed",
                detail=_RANK.sub("", result["detail"]),
            )
            self.checks.append(check)
            return check
        fact = _FACT.match(line)
        if fact and fact["kind"] == "mpi":
            self.mpi.append(fact["value"])
        elif fact:
            name, _, version = fact["value"].partition(" ")
            self.frameworks[name] = version
        return None

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if not check.passed]


def run_checks(image: StoredImage, progress: Progress) -> tuple[Check, ...]:
    """Run the image's checks at ``CHECKS``; also save the results in its manifest, if it has one.

    Args:
        image: The image.
        progress: Announces a wait for the image's lock.

    Raises:
        BuildError: The image has no checks, or did not run.
        NeedsInstallError: Apptainer is not installed.
    """
    result = run_in_image(image.path, ["/bin/sh", f"{CHECKS}/run"], timeout=_TIMEOUT)
    results = Results()
    if image.manifest is not None:
        labels = check_labels.only(local_case(image))
        is_passed = labels.outcome == "passed"
        results.checks.append(Check(name="labels", passed=is_passed, detail=labels.message))
    for line in result.stdout.splitlines():
        results.feed(line)
    if not any(check.name != "labels" for check in results.checks):
        raise BuildError(
            f"the image {image.name} has no checks of its own, or does not run",
            place=image.path,
            details=result.tail(),
        )
    checks = tuple(results.checks)
    store.update_manifest(
        image,
        lambda now: replace(now, checks=checks, frameworks=results.frameworks or now.frameworks),
        progress,
    )
    return checks
