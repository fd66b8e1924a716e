"""Run scripts of ours on a site's nodes, by the run API, in a directory that is removed afterwards.

The doctor's probe runs so, and the ranks by which `toolkit image verify` checks communication.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.api.run import complete
from toolkit.config import package_directory
from toolkit.errors import PlanError, ToolkitError
from toolkit.images.verify.case import RunRanks, ScriptRun
from toolkit.model.site import Site
from toolkit.planning.case import gather
from toolkit.planning.settings import Layer
from toolkit.slurm.client import PATIENCE, Wait, patiently

_PATIENCE = 1800.0  # seconds: the job may have to wait in a queue
_LOG = logging.getLogger("toolkit")


def run_script(
    script: Path, settings: Mapping[str, Any], arguments: Sequence[str], site: Site | None = None
) -> ScriptRun:
    """Run a script on nodes, and wait until it has ended.

    Args:
        script: is copied into a directory of its own that all nodes see.
        settings: of the job, as job.toml calls them: image, site, launcher, nodes, ...
        arguments: of the script.
        site: the site, from whose directory for jobs it is run, if it has one.
    """
    given = site.submit_directory if site else None
    within = Path(os.path.expandvars(given or "~/.cache/toolkit")).expanduser()
    within.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="verify-", dir=within) as name:
        directory = Path(name)
        shutil.copy(script, directory)
        flags = Layer("flag", {**settings, "snapshot": False, "arguments": tuple(arguments)})
        try:
            wait = Wait(PATIENCE, _LOG.warning)
            case = patiently(lambda: gather(script.name, flags, directory), wait)
            # A check does not wait for other runs that a settings file names.
            case = case._replace(after=())
            ran = complete(case, wait, until=time.monotonic() + _PATIENCE)
        except TimeoutError as error:
            return ScriptRun(refusal=str(error))
        except ToolkitError as error:  # all reasons on one line, and the next step of each
            findings = error.findings if isinstance(error, PlanError) else ()
            return ScriptRun(refusal="; ".join(each.summary for each in findings or (error,)))
        files: dict[str, Any] = {}
        for path in sorted(directory.glob("*.json")):
            with suppress(OSError, ValueError):
                files[path.name] = json.loads(path.read_text(encoding="utf-8"))
        return ScriptRun(ran.outcome, files=files)


def rank_runner(
    image: str,
    site: str,
    nodes: int,
    gpus: int,
    settings: Mapping[str, Any],
    known: Site | None = None,
) -> RunRanks:
    """Return what starts ranks on nodes: one on each, or one for each GPU.

    Args:
        image: its path.
        site: name of the site.
        nodes, gpus: the number of nodes, and of GPUs on each.
        settings: further settings of the jobs, such as a partition.
        known: the site, if it is known.
    """
    job = {"image": image, "site": site, "nodes": nodes, **settings}
    job |= {"gpus": gpus} if gpus else {"ntasks_per_node": 1}
    script = package_directory("images/checks") / "ranks.py"
    return lambda launcher, arguments: run_script(
        script, {**job, "launcher": launcher}, arguments, known
    )
