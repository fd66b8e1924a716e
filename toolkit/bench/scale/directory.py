"""The directory of a study: its options, the measurements so far, and the run in progress.

Each measurement is a file of its own, written atomically, so that a study that is killed loses no
finished run. The run of a killed study is found again by the note that was written before its job
was submitted.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from toolkit.bench.scale.model import MOST_POINTS, Options, Point, Sample, Study
from toolkit.errors import BusyError, ConfigError, MalformedInputError, UsageError
from toolkit.files import read_json, read_text, write_atomically
from toolkit.model.base import BadDataError, from_json, to_json
from toolkit.trust import require_trusted

_MOST_FILES = 100_000
# Options that may change while a study goes on: they add points, or are about the report only.
_MAY_GROW = (
    *("nodes", "ntasks_per_node", "modes", "launchers", "runs"),
    "count_oversubscribed",
)


class StudyDirectory:
    """The files of one study: its options, the measurements so far, and the run in progress."""

    def __init__(self, path: Path) -> None:
        """Name the files below a directory, which may not exist."""
        self.path, self.study = path, path / "study.json"
        self.json, self.html = path / "report.json", path / "report.html"
        self.samples, self.pending = path / "samples", path / "pending"

    def sample_file(self, point: Point, number: int) -> Path:
        """Return the file of a measurement."""
        return self.samples / f"{point.key}-{number}.json"

    def pending_file(self, point: Point, number: int) -> Path:
        """Return the note of a run that has not been measured."""
        return self.pending / f"{point.key}-{number}.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the study, which one process at a time measures.

        Raises:
            BusyError: another process holds it.
            UntrustedError: another user could name the runs that it takes up, cancels and removes.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        require_trusted(self.path)
        handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(
                    f"another process measures the study in {self.path}",
                    place="--directory",
                    next_step="wait for it, or give another --directory",
                ) from None
            yield
        finally:
            os.close(handle)

    def begin(self, options: Options, origin: dict[str, str], points: Sequence[Point]) -> Study:
        """Write the options of a study, or take up the one that is in the directory.

        Points that it had before stay in it.

        Raises:
            UsageError: the directory has a study with other options or another script or image.
        """
        directory = str(self.path)
        study = Study(directory=directory, options=options, origin=origin, points=tuple(points))
        if self.study.is_file():
            before = read_json(self.study, Study)
            changed = [
                name.replace("_", "-")
                for name in Options.__struct_fields__
                if name not in _MAY_GROW and getattr(before.options, name) != getattr(options, name)
            ]
            changed += [
                name
                for name in ("script SHA-256", "image digest")
                if before.origin.get(name) != origin.get(name)
            ]
            if changed and any(self.samples.glob("*.json")):
                raise UsageError(
                    f"{self.path} has a study that differs in: {', '.join(changed)}",
                    place="--directory",
                    next_step="measure in another --directory; --against compares the two",
                )
            all_points = dict.fromkeys((*before.points, *points))
            study = replace(study, origin=before.origin, points=tuple(all_points))
        write_atomically(self.study, to_json(study))
        return study

    def read_samples(self) -> tuple[Sample, ...]:
        """Return all measurements so far."""
        files = sorted(self.samples.glob("*.json"))[:_MOST_FILES]
        return tuple(read_json(path, Sample) for path in files)

    def run_in_progress(self, point: Point, number: int) -> Path | None:
        """Return the directory of a run that was submitted, but not measured."""
        try:
            noted = json.loads(read_text(self.pending_file(point, number)))
            run = Path(str(noted["run"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return run if (run / "plan.json").is_file() else None

    def note_run(self, point: Point, number: int, run: str) -> None:
        """Note the directory of a run before its job is submitted."""
        write_atomically(self.pending_file(point, number), json.dumps({"run": run}) + "\n")

    def keep(self, point: Point, sample: Sample) -> None:
        """Write a measurement, and drop the note of its run."""
        write_atomically(self.sample_file(point, sample.number), to_json(sample))
        self.pending_file(point, sample.number).unlink(missing_ok=True)


def read_study(path: Path) -> Study:
    """Return a study from its directory or its ``report.json``.

    Raises:
        ConfigError: there is none.
        MalformedInputError: the file is not a report, or one that no measurement gives: it may be
            another user's.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        text = read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"there is no report that can be read: {error}",
            place=str(path),
            next_step="name a study's directory or its report.json",
        ) from None
    try:
        study = from_json(text, Study)
        if len(study.points) > MOST_POINTS or len(study.samples) > _MOST_FILES:
            raise BadDataError("it has too many points or measurements", "points")
        for entry in study.samples:
            least = min(entry.value, entry.nodes, entry.ranks_per_node, entry.cpus_per_rank)
            if not (least > 0 and entry.value < math.inf):
                raise BadDataError("a measurement is not above zero, or not finite", "samples")
    except BadDataError as error:
        raise MalformedInputError(
            f"this is not the report of a scaling study: {error}",
            place=f"{file}, key {error.key}" if error.key else str(file),
            next_step="name a report.json of toolkit bench scale",
        ) from None
    return study
