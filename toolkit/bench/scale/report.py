"""Write the reports of a study: a page, JSON for later comparisons, CSV for spreadsheets."""

from __future__ import annotations

from toolkit.bench.scale.analysis import series
from toolkit.bench.scale.directory import StudyDirectory
from toolkit.bench.scale.model import Study
from toolkit.bench.scale.page import page
from toolkit.bench.scale.text import as_csv
from toolkit.files import write_atomically
from toolkit.model.base import to_json


def write_reports(study: Study, directory: StudyDirectory) -> None:
    """Write all reports of what is measured so far."""
    entries = series(study)
    write_atomically(directory.json, to_json(study))
    write_atomically(directory.csv, as_csv(study, entries))
    write_atomically(directory.html, page(study))
