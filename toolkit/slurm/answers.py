"""Read in what Slurm's commands print whether it was silent, refused, or gave no answer at all."""

from __future__ import annotations

import re
from pathlib import Path

from toolkit.errors import SlurmSilentError, SlurmUnreachableError, SubmissionError
from toolkit.shell import Result

# Messages of 22.05 to 26.05 (slurm_errno.c, slurm_protocol_api.c, auth_munge.c, conf.c) for what no
# controller executed: it received no request, or is not the one that executes any.
_UNREACHED = (
    r"(?i)connect failure|Communication connection failure|Connection refused|No route to host"
    r"|Could not establish a configuration source|fetch_config|failed to fetch remote configs"
    r"|Unable to establish control(?:ler)? machine|Munge encode failed|auth_g_create"
    r"|in standby mode|Rate limit exceeded"
)
# Messages for a connection that broke after the request, or for an answer that could not be read:
# the controller may have executed it.
_LOST = (
    r"(?i)Unable to contact slurm controller(?! \(connect)|Zero Bytes were transmitted"
    r"|Connection reset by peer|Socket timed out|Connection timed out"
    r"|Message (?:send|receive) failure"
    r"|Communication shutdown failure|Unexpected m(?:essage received|issing socket)|Broken pipe"
    r"|Transport endpoint is not connected|Insane message length|Header lengths are longer"
    r"|Munge decode failed|auth_g_(?:verify|unpack)|closing all communications"
    r"|Connection forced closed|delayed socket error|talking to the database"
)
# Either the controller could not read the request, or the command could not read the answer.
_EITHER = "Protocol authentication error"
_MOST_SIGNALS = 64
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


class AnswerLostError(
    SlurmUnreachableError, exit_code=89, kind="slurm silent", step=SlurmSilentError.step
):
    """It is unknown whether Slurm has a job."""


def is_silent(result: Result) -> bool:
    """Return whether a command failed because no controller answered."""
    stderr = result.stderr
    return not result.ok and bool(re.search(_UNREACHED, stderr) or _is_lost(stderr))


def _is_lost(stderr: str) -> bool:
    return bool(re.search(_LOST, stderr)) or (
        _EITHER in stderr and not re.search(_UNREACHED, stderr)
    )


def submitted_id(result: Result, script: Path) -> int:
    """Return the id of the job that sbatch submitted.

    Raises:
        SubmissionError: Slurm refused the job; its message is in the details.
        AnswerLostError: it is unknown whether Slurm has the job.
        SlurmSilentError: no controller was reached, so Slurm cannot have the job.
    """
    # The last one: a site's plugin may print a number before it.
    ids = re.findall(r"^(\d{1,10})(?:;.*)?$", result.stdout, re.MULTILINE)
    if result.ok and ids:
        return int(ids[-1])
    # sbatch ends with 255 for an option that it cannot read.
    killed = result.returncode < 0 or 128 < result.returncode <= 128 + _MOST_SIGNALS
    if result.ok or ids or killed or not result.tail() or _is_lost(result.stderr):
        raise AnswerLostError("sbatch gave no answer", place=str(script), details=result.tail(3))
    if re.search(_UNREACHED, result.stderr):
        raise SlurmSilentError(
            "no Slurm controller answers", place="sbatch", details=result.tail(3)
        )
    words = [re.sub(r"^sbatch: (?:error: )?", "", line) for line in result.tail()]
    raise SubmissionError(
        "Slurm refused the job; nothing was submitted",
        place=str(script),
        details=words,
        next_step=next((step for text, step in _REFUSALS.items() if text in result.stderr), None),
    )
