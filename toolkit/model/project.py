"""What a project says for everything that is done in it: ``toolkit.toml``."""

from __future__ import annotations

from toolkit.model.job import Job

PROJECT_FILE = "toolkit.toml"


class Project(Job, frozen=True, kw_only=True):
    """The options of every job of the project, and:

    Attributes:
        registries: what stands for which registry when images are built: ``{"nvcr.io": "mirror.site/ngc"}``.
    """

    registries: dict[str, str] = {}
