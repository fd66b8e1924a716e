"""What a plan is made from. Pure data; ``gather`` looks it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.model.code import ScriptFile, Tree
from toolkit.model.environment import Engine, Environment
from toolkit.model.image import Manifest
from toolkit.model.job import Job
from toolkit.model.site import Facts, Site
from toolkit.model.source import Shown, Source
from toolkit.preflight.model import HostFacts


class Inputs(NamedTuple):
    """All that a plan is made from.

    Attributes:
        job: the merged settings.
        origins: where each of them came from.
        site, facts: the cluster, as written and as it answered.
        image: absolute path of the SIF; empty where it was not found.
        manifest: of the image; None: nobody knows what is in it.
        script: the script as the rank will be given it.
        folder: directory of the script, absolute.
        directory: where the user stands, absolute; the ranks run there.
        run_directory: where the run's files will be, absolute.
        findings: what was found wrong while looking things up.
        source: what was read of the script.
        program: there is no script: ``script`` is a program of the image.
        shown: further directories that the ranks must see, such as the git work tree.
        environment, engine: where the ranks run in no SIF: the Python, or the engine, that was found.
        after: what the job waits for, in Slurm's words: ``afterok:7``.
        seen: what was looked at on this machine, for the rules.
        force: why what the rules find shall not stop the job; None: it does.
        script_file: the script's hash; None: it is a program, or cannot be read.
        notes: warnings of what was looked up.
        tree: the tree that a snapshot is taken of; None: the job runs in the work tree itself.
        unchecked: the warning of a plan that was made without the cluster; empty: it was asked.
        to_fetch: the reference of an image that must be fetched before the job is submitted; empty: none.
        is_recipe: the image comes from one of our recipes, also where it is not here.
    """

    job: Job
    origins: dict[str, str]
    site: Site
    facts: Facts
    image: str
    manifest: Manifest | None
    script: str
    folder: str
    directory: str
    run_directory: str
    findings: Sequence[ToolkitError] = ()
    source: Source = Source()
    program: bool = False
    after: tuple[str, ...] = ()
    seen: HostFacts = HostFacts()
    force: str | None = None
    environment: Environment | None = None
    engine: Engine | None = None
    script_file: ScriptFile | None = None
    notes: tuple[str, ...] = ()
    tree: Tree | None = None
    unchecked: str = ""
    to_fetch: str = ""
    is_recipe: bool = False
    shown: tuple[Shown, ...] = ()
