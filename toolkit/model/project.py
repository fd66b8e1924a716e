"""What a machine, a user or a project says for everything that is done there: ``toolkit.toml``."""

from __future__ import annotations

from toolkit.model.job import Job

PROJECT_FILE = "toolkit.toml"


class Project(Job, frozen=True, kw_only=True):
    """The options of every job of the project, and:

    Attributes:
        images: directories with images that others built, which are looked for after the user's own.
        registries: what stands for which registry when images are built: ``{"nvcr.io": "mirror.site/ngc"}``.
    """

    images: tuple[str, ...] = ()
    registries: dict[str, str] = {}
