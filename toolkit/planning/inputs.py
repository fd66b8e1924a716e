"""The inputs of a plan. Pure data; ``gather`` collects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.model.code import ScriptFile, Tree
from toolkit.model.environment import Engine, Environment
from toolkit.model.image import Manifest
from toolkit.model.job import Job
from toolkit.model.plan import Plan
from toolkit.model.site import Facts, Site
from toolkit.model.source import Shown, Source
from toolkit.preflight.model import HostFacts


class Inputs(NamedTuple):
    """The inputs of a plan.

    Attributes:
        job: the merged settings.
        origins: the source of each setting.
        site: the cluster as its file describes it; ``facts``: as Slurm describes it.
        image: absolute path of the SIF; empty if there is none.
        manifest: of the image; None: its content is not known.
        script: the script as the ranks are given it.
        folder: directory of the script, absolute.
        directory: the working directory of the ranks, absolute.
        run_directory: the directory of the run's files, absolute.
        findings: errors from gathering the inputs.
        source: imports, calls and options of the script.
        program: there is no script: ``script`` is a program of the image.
        after: dependencies of the job as Slurm writes them: ``afterok:7``.
        host: facts of this machine, for the preflight rules.
        force: the reason to submit a job that the rules refuse; None: the rules decide.
        environment: the Python of the host, ``engine``: the container engine, for ranks that run
            in no SIF.
        script_file: the script's hash; None: it is a program, or cannot be read.
        notes: warnings from gathering the inputs.
        tree: the tree that a snapshot is taken of; None: the job runs in the work tree itself.
        unchecked: the warning of a plan that was made without the cluster; empty: it was asked.
        to_fetch: the reference of an image that must be fetched before the job is submitted; empty:
            none.
        is_recipe: the image comes from one of our recipes, even if it is not on this machine.
        shown: further directories that the ranks must see, such as the git work tree.
        is_part: the run has the first nodes of a larger allocation.
        understood: what a pasted command of another launcher means; empty: it is none.
        repeats: the recorded plan of the run that is repeated without a change; else None.
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
    host: HostFacts = HostFacts()
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
    is_part: bool = False
    understood: str = ""
    repeats: Plan | None = None
