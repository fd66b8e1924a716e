"""A workshop as its instructor writes it, as it is packed, and as a participant has joined it."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from toolkit.model.base import BadDataError, Model, Stored, field_names
from toolkit.model.job import JOINED as JOINED
from toolkit.model.job import Job, Positive

WORKSHOP = "workshop.toml"
CONTENTS = "workshop.json"  # first in a packed workshop
SIGNATURE = "workshop.json.sig"
PACKED = "workshop.tar"
FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}\Z")
# A relative path that leads to no other directory than those below.
_INSIDE = r"^(?:(?!\.{1,2}(?:/|\Z))[^/\0]{1,255}(?:/(?!\Z)|\Z)){1,64}\Z"

Name = Annotated[
    str,
    Meta(pattern=rf"^(?!runs\Z){NAME.pattern}", description="a name of a folder, such as 01-ddp"),
]
PlainName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}\Z", description="a plain name")
]
PathInside = Annotated[
    str, Meta(pattern=_INSIDE, description="a file or folder beside workshop.toml")
]
Lock = Annotated[
    str, Meta(pattern=rf"^\Z|{_INSIDE}", description='a file beside workshop.toml, or ""')
]

Language = Annotated[
    str, Meta(pattern="^[a-z]{2,3}$", description='the code of a language, such as "en"')
]


class Exercise(Model, frozen=True, kw_only=True):
    """One exercise of a workshop.

    Attributes:
        name: the folder that participants get, and the name of its runs: ``01-ddp``.
        folder: a folder beside ``workshop.toml`` with a ``job.toml`` or notebooks, or an exercise
            that came with the toolkit: ``jobs/digits-ddp``.
        text: language -> the Markdown file that explains it, beside ``workshop.toml``; without one
            the README.md of the folder.
    """

    name: Name
    folder: PathInside
    text: dict[Language, PathInside] = {}


class Workshop(Job, frozen=True, kw_only=True):
    """``workshop.toml``: a workshop, with any options of `toolkit run` for all of its exercises.

    The options are those of ``toolkit.toml``: site, partition, reservation, account, comment,
    gpus_per_node, time and so on. A ``job.toml`` of an exercise takes precedence over them.

    Attributes:
        title: of the guide; a text, or language -> text.
        language: the languages of the guide, the first is the default.
        date: when the workshop takes place, as text for the guide.
        people: the expected number of participants.
        images: name -> its lock, a file beside ``workshop.toml``; empty: no lock, the image is
            packed as it is built.
        data: name -> a directory, which participants see read-only as ``/data/NAME``.
        results: the shared directory in which runs leave their results, with the consent of each
            participant; empty: none.
        exercises: in their order.
    """

    title: str | dict[Language, str]
    language: tuple[Language, ...] = ("en",)
    date: str = ""
    people: Positive = 1
    images: dict[PlainName, Lock] = {}
    data: dict[PlainName, str] = {}
    results: Annotated[str, Meta(pattern=r"^(?:/.*)?\Z", description="an absolute path")] = ""
    exercises: Annotated[
        tuple[Exercise, ...], Meta(min_length=1, description="tables [[exercises]], one at least")
    ]

    def title_in(self, language: str) -> str:
        """Return the title in a language, else in the first language that has one."""
        if isinstance(self.title, str):
            return self.title
        return self.title.get(language) or next(iter(self.title.values()), "")

    def job_options(self) -> dict[str, object]:
        """Return the options of `toolkit run` that the workshop sets."""
        values = {name: getattr(self, name) for name in field_names(Job)}
        return {name: value for name, value in values.items() if value not in (None, (), {})}


class PackedFile(Model, frozen=True, kw_only=True):
    """A file in a packed workshop: its size and its SHA-256."""

    size: Annotated[int, Meta(ge=0)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Contents(Model, frozen=True, kw_only=True):
    """``workshop.json``: the contents of a packed workshop.

    Attributes:
        format: of the file.
        name: of the workshop: the name of its folder.
        workshop: as the instructor wrote it.
        files: path -> file, in the order of the archive.
    """

    format: int = FORMAT
    name: Annotated[str, Meta(pattern=f"^{NAME.pattern}", description="a name of a folder")]
    workshop: Workshop
    files: Annotated[dict[PathInside, PackedFile], Meta(max_length=20_000)]


class Joined(Model, frozen=True, kw_only=True):
    """``.workshop.json`` in the directory of a participant.

    Attributes:
        source: the directory of the unpacked workshop.
        name: of the workshop.
        exercises: the names of its exercises.
        results: the directory in which the results are left; empty: the participant does not share
            them.
    """

    source: str
    name: str
    exercises: tuple[str, ...]
    results: str = ""


class Done(Stored, frozen=True, kw_only=True):
    """The best run of an exercise by a participant.

    Attributes:
        state: ``ok``, or how its last run failed.
        tries: the number of runs that have ended.
        accuracy: that the script printed; None if it prints none.
        seconds: of the run.
    """

    state: Annotated[str, Meta(max_length=40)]  # of a file that any user can write
    tries: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    accuracy: Annotated[float, Meta(ge=-1e6, le=1e6)] | None = None
    seconds: float = 0.0


class Results(Model, frozen=True, kw_only=True):
    """A participant's file in the directory of results.

    Attributes:
        name: the participant's login name, equal to the owner of the file.
        workshop: name of the workshop.
        exercises: by their names.
    """

    name: str
    workshop: str
    exercises: dict[str, Done] = {}


def check(workshop: Workshop) -> None:
    """Raise BadDataError if two exercises of a workshop have one name."""
    names = [exercise.name for exercise in workshop.exercises]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise BadDataError(f"two exercises are called {name}", f"exercises[{number}].name")
