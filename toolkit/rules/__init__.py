"""Rules that a job must keep before it is submitted.

A rule is a generator of findings over a case: errors that stop the job, or warnings. The first line
of its docstring says what it asks for. All rules are asked, so that a user can fix everything at
once.
"""

from __future__ import annotations

from toolkit.errors import ToolkitError
from toolkit.model.case import Case
from toolkit.rules import files, image, job

# They read this machine, where a case is gathered for a cluster that it reaches.
HOST = (
    files.directory,
    files.hidden,
    files.script,
    files.binds,
    files.datasets,
    files.purge,
    files.space,
    files.cache,
    files.architecture,
    files.locked,
)
# In the order in which findings are shown, before those of the machine.
PURE = (
    job.partition,
    job.size,
    job.gpus,
    job.gpu_types,
    job.anywhere,
    job.user_gpus,
    job.user_jobs,
    job.time,
    job.mesh,
    job.checkpoint,
    job.options,
    job.comment,
    job.ports,
    job.modules,
    image.program,
    image.imports,
    image.driver,
    image.gpu_code,
)


def check_host(case: Case) -> Case:
    """Return the case with what the rules about this machine find.

    For a cluster that is not reached only what holds on any machine is known.
    """
    rules = HOST if case.cluster else (files.script,)
    return case._replace(host=tuple(finding for rule in rules for finding in rule(case)))


def judge(case: Case) -> list[ToolkitError]:
    """Return what all rules find in a job.

    ``--force`` with a reason lets a job pass that a rule would have stopped: tables of sites
    change, and a person may know better.
    """
    return [*(finding for rule in PURE for finding in rule(case)), *case.host]


def described() -> dict[str, str]:
    """Return what each rule asks for, by its name."""
    rules = (*HOST, *PURE)
    return {rule.__name__: (rule.__doc__ or "").partition("\n")[0] for rule in rules}
