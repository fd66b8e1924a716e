"""Errors of Slurm's commands: which messages mean silence, a lost answer or a refusal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import SlurmSilentError, SlurmUnreachableError, SubmissionError
from toolkit.shell import Result

# Messages of Slurm's commands that did not reach a controller: it received no request.
_UNREACHED = re.compile(
    r"connect failure|Could not establish a configuration source|fetch_config|Connection refused"
    r"|No route to host|Unable to establish control machine address|Protocol authentication error"
    r"|munge.{0,100}(?:refused|No such file)",
    re.IGNORECASE,
)
# Messages for a connection that broke after the request: the controller may have executed it, and
# its answer was lost.
_LOST = re.compile(
    r"Unable to contact slurm controller|Zero Bytes were transmitted|Connection reset by peer"
    r"|Socket timed out|Connection timed out|Message receive failure|Unexpected message received"
    r"|Broken pipe|Transport endpoint is not connected|Insane message length",
    re.IGNORECASE,
)
# Slurm's refusals (slurm_errno.c, getopt_long), and the command that lists the valid values.
_REFUSALS = {
    "Invalid license specification": "scontrol show licenses lists those of the cluster",
    "Invalid account or account/partition": (
        "sacctmgr show associations user=$USER lists your accounts"
    ),
    "Invalid qos specification": (
        "sacctmgr show associations user=$USER format=qos lists those that you may use"
    ),
    "Invalid feature specification": "scontrol show nodes lists the features of each node",
    "Invalid generic resource (gres)": (
        "sinfo --format='%P %G' lists the generic resources of each partition"
    ),
    "Invalid wckey specification": "sacctmgr show wckey user=$USER lists yours",
    "unrecognized option": "sbatch --help lists the options that this version takes",
}
_SILENT_STEP = "try again when sinfo gets an answer. On a local cluster: toolkit cluster status"


class AnswerLostError(SlurmUnreachableError):
    """It is unknown whether Slurm has a job: search for its mark before you submit it again."""

    exit_code, kind = SlurmSilentError.exit_code, SlurmSilentError.kind


def is_silent(result: Result) -> bool:
    """Return whether a command failed because no controller answered."""
    stderr = result.stderr
    return not result.ok and bool(_UNREACHED.search(stderr) or _LOST.search(stderr))


def silent(cause: str, place: str | None = None, details: Sequence[str] = ()) -> SlurmSilentError:
    """Return the error for a Slurm whose controller does not answer."""
    return SlurmSilentError(cause, place=place, details=details, next_step=_SILENT_STEP)


def no_slurm(
    cause: str, place: str | None = None, details: Sequence[str] = ()
) -> SlurmUnreachableError:
    """Return the error for a machine without Slurm, with the way to get one."""
    return SlurmUnreachableError(
        cause,
        place=place,
        details=details,
        next_step="on a cluster: log in to a login node. Without one: toolkit cluster up "
        "(a real Slurm on this machine)",
    )


def answer_lost(cause: str, place: str, details: Sequence[str]) -> AnswerLostError:
    """Return the error for a command whose answer did not arrive."""
    return AnswerLostError(cause, place=place, details=details, next_step=_SILENT_STEP)


def submitted_id(result: Result, script: Path) -> int:
    """Return the id of the job that sbatch submitted.

    Raises:
        SubmissionError: Slurm refused the job; its message is in the details.
        AnswerLostError: it is unknown whether Slurm has the job.
        SlurmSilentError: no controller was reached, so Slurm cannot have the job.
    """
    match = re.search(r"^(\d+)(?:;.*)?$", result.stdout, re.MULTILINE)
    if result.ok and match:
        return int(match[1])
    if not result.ok and _UNREACHED.search(result.stderr):
        raise silent("no Slurm controller answers", "sbatch", result.tail(3))
    killed = result.returncode < 0 or result.returncode > 128
    if result.ok or match or killed or not result.tail() or _LOST.search(result.stderr):
        raise answer_lost("sbatch gave no answer", str(script), result.tail(3))
    words = [re.sub(r"^sbatch: (?:error: )?", "", line) for line in result.tail()]
    raise SubmissionError(
        "Slurm refused the job; nothing was submitted",
        place=str(script),
        details=words,
        next_step=next((step for text, step in _REFUSALS.items() if text in result.stderr), None),
    )
