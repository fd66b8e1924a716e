"""One tree of errors, one exit code per cause.

Every error says what is wrong (``cause``), where (``place``), what would have been valid
(``choices``, of which the nearest is named) and what to do next (``next_step``). ``cli.main`` is
the only place that catches and prints them.

Codes start at 64 (as ``sysexits.h`` does), because `toolkit run` ends with the exit code of the
job, and programs use the low ones.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

# The topic about errors that are not those of a job, an image, a site or a cluster.
GENERAL_PAGE = "run/errors"

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # the disk is full, or the quota is exhausted
# No fault of the file that is used; `of_system` names the cause.
EXHAUSTED = (*NO_SPACE, errno.EMFILE, errno.EFBIG, errno.ENOMEM)


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice with the meaning of ``name``, or else with the most similar spelling.

    None if there is none.
    """
    from difflib import get_close_matches

    from toolkit.meanings import meant, plain

    known = {plain(choice): choice for choice in sorted(choices, reverse=True)}
    same = next((known[word] for word in meant(name) if word in known), None)
    similar = get_close_matches(plain(name), known, n=1, cutoff=0.5)
    # Dashes say nothing, so that --output is not like --pty. The same word in other letters is the
    # choice itself, but of one letter another case is another option: sbatch's -n and -N.
    is_spelling = len(plain(name)) > 1 and plain(name) in known
    return same if same and not is_spelling else known[similar[0]] if similar else same


class ToolkitError(Exception):
    """A failure that has an explanation.

    Args:
        cause: what is wrong, in one sentence, without a full stop.
        place: the option, file and line, or key with the error.
        next_step: what the user can do now; a command if there is one.
        choices: every valid value; the nearest to ``value`` is named.
        value: the invalid value that was given in place of one of ``choices``.
        details: further lines, such as the tail of a log; printed as they are.
        source: the document with the rule that was broken; empty if there is none.
        is_warning: it does not stop the job.

    Attributes:
        page: the topic of `toolkit docs` about such errors.
    """

    exit_code: int = 70
    kind: str = "internal"
    page: str = GENERAL_PAGE

    def __init__(
        self,
        cause: str,
        *,
        place: str | None = None,
        next_step: str | None = None,
        choices: Iterable[str] = (),
        value: str | None = None,
        details: Sequence[str] = (),
        source: str = "",
        is_warning: bool = False,
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.place = place
        self.next_step = next_step
        self.choices = tuple(sorted(choices))
        self.close = nearest(value, self.choices) if value is not None else None
        self.details = tuple(details)
        self.source = source
        self.is_warning = is_warning

    @property
    def advice(self) -> str:
        """The next step, or else the closest valid choice."""
        return self.next_step or (f"close: {self.close}" if self.close else "")

    @property
    def summary(self) -> str:
        """The error on one line.

        ``--gpus: a node has 4 GPUs, 8 were asked for (site neuron, 2026-08); --gpus 4``.
        """
        source = f" ({self.source})" if self.source else ""
        step = f"; {self.advice}" if self.advice else ""
        return f"{self.place}: {self.cause}{source}{step}"


class UsageError(ToolkitError):
    """The command line or the value of an option is invalid."""

    exit_code, kind = 64, "usage"


class PlanError(ToolkitError):
    """The job could not run on the site, for reasons of several kinds.

    They are in ``findings``. Where all of them are of one kind, the exit code is theirs.
    """

    exit_code, kind = 65, "plan"
    page = "run/refused"

    def __init__(
        self, cause: str, findings: Sequence[ToolkitError], *, next_step: str | None = None
    ) -> None:
        super().__init__(cause, next_step=next_step)
        self.findings = tuple(findings)
        if len({finding.exit_code for finding in findings}) == 1:
            self.exit_code, self.kind = findings[0].exit_code, findings[0].kind
            if findings[0].page != GENERAL_PAGE:
                self.page = findings[0].page


class InternalError(ToolkitError):
    """The toolkit itself has a bug."""


class ScriptMissingError(ToolkitError):
    """The training script, or the job folder, does not exist."""

    exit_code, kind = 66, "script"
    page = "run"


class UnknownImageError(ToolkitError):
    """No recipe, image or file has this name."""

    exit_code, kind = 67, "image name"
    page = "image/build"


class ImageMissingError(ToolkitError):
    """The recipe is known, but its image is not built, or incomplete."""

    exit_code, kind = 68, "image"
    page = "image/build"


class SlurmUnreachableError(ToolkitError):
    """No Slurm answers."""

    exit_code, kind = 69, "slurm"
    page = "site/doctor"


class CommandFailedError(ToolkitError):
    """An outside program failed for an unknown reason."""

    exit_code, kind = 71, "command"


class NeedsInstallError(ToolkitError):
    """A program or package is missing on this machine."""

    exit_code, kind = 72, "missing program"
    page = "site/install"


class NoSpaceError(ToolkitError):
    """A file system has too little free space."""

    exit_code, kind = 73, "disk space"
    page = "run/clean-up"


class BuildError(ToolkitError):
    """An image could not be built, or did not pass its checks."""

    exit_code, kind = 74, "build"
    page = "image/build"


class BusyError(ToolkitError):
    """Another user or process holds a resource; it will be free later."""

    exit_code, kind = 75, "busy"


class SubmissionError(ToolkitError):
    """Slurm refused the job."""

    exit_code, kind = 76, "submission"
    page = "run/refused"


class ForbiddenError(ToolkitError):
    """The user lacks the permission for this action."""

    exit_code, kind = 77, "permission"


class ConfigError(ToolkitError):
    """A recipe, site, job or settings file is broken."""

    exit_code, kind = 78, "file"


class UnknownLauncherError(ToolkitError):
    """No launcher has this name."""

    exit_code, kind = 79, "launcher"
    page = "running"


class UnknownPartitionError(ToolkitError):
    """The site has no such partition."""

    exit_code, kind = 80, "partition"
    page = "run/refused"


class ShapeError(ToolkitError):
    """More nodes, GPUs, CPUs or time than the site has."""

    exit_code, kind = 81, "shape"
    page = "run/refused"


class BindMissingError(ToolkitError):
    """A mounted directory or file, or the working directory, does not exist on the nodes."""

    exit_code, kind = 82, "bind"
    page = "run/refused"


class ClusterError(ToolkitError):
    """The local cluster could not be started, or is not in the state that is needed."""

    exit_code, kind = 83, "local cluster"
    page = "teach/local-cluster"


class UnknownRunError(ToolkitError):
    """No run has this name."""

    exit_code, kind = 84, "run name"
    page = "run/detach"


class UnknownSiteError(ToolkitError):
    """No site has this name."""

    exit_code, kind = 85, "site"
    page = "site/describe"


class LauncherMismatchError(ToolkitError):
    """The launcher cannot work with this image or this site."""

    exit_code, kind = 86, "launcher and image"
    page = "running"


class JobLostError(ToolkitError):
    """The job ended without an exit code of its own: a node failed, or Slurm forgot it."""

    exit_code, kind = 87, "job lost"
    page = "run/explain"


class SignatureError(ToolkitError):
    """An image or workshop lacks its signature, or is not what was signed or locked."""

    exit_code, kind = 88, "signature"
    page = "image/share"


class SlurmSilentError(SlurmUnreachableError):
    """There is a Slurm, but its controller gives no answer within the time that is allowed."""

    exit_code, kind = 89, "slurm silent"


class UnknownRuntimeError(ToolkitError):
    """No runtime has this name."""

    exit_code, kind = 90, "runtime"
    page = "running"


class EnvironmentMissingError(ToolkitError):
    """No conda environment has this name, or it has no Python."""

    exit_code, kind = 91, "environment"
    page = "run/conda"


class PreflightError(ToolkitError):
    """Checks failed: of `toolkit doctor`, or of `workshop join` and `rehearse`."""

    exit_code, kind = 92, "preflight"
    page = "site/doctor"


class UnrecordedError(ToolkitError):
    """Slurm has the job, but its number could not be recorded."""

    exit_code, kind = 93, "job not recorded"
    page = "run/clean-up"


class UntrustedError(ToolkitError):
    """A file or directory belongs to another user, or others can write to it."""

    exit_code, kind = 94, "untrusted file"
    page = "site/trust"


class MalformedInputError(ToolkitError, ValueError):
    """A file, archive or answer does not follow its format; none of it is used."""

    exit_code, kind = 95, "malformed input"


class LimitError(ToolkitError):
    """A limit of this shell or machine is reached: of open files, of a file's size, of memory."""

    exit_code, kind = 96, "limit"


class ImportsMissingError(ToolkitError):
    """The script imports a module that the Python of its ranks does not have."""

    exit_code, kind = 97, "imports"
    page = "image/extend"


class RegressionError(ToolkitError):
    """A training is slower than in an earlier study, beyond the noise of both."""

    exit_code, kind = 98, "regression"
    page = "run/scale"


_SYSTEM: dict[int | None, tuple[type[ToolkitError], str, str]] = {
    **dict.fromkeys(
        NO_SPACE, (NoSpaceError, "nothing more can be written", "make room there, then try again")
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        (ForbiddenError, "a file cannot be used", "see whose it is: ls -ld"),
    ),
    errno.ENAMETOOLONG: (UsageError, "a path cannot be used", "give a shorter one"),
    errno.EAGAIN: (LimitError, "no more processes can be started", "ps -u $USER; ulimit -u"),
    errno.EMFILE: (LimitError, "no more files can be opened", "ulimit -n 1024"),
    errno.EFBIG: (LimitError, "a file cannot become larger", "ulimit -f unlimited"),
    errno.ENOMEM: (
        LimitError,
        "no more memory can be used",
        "ulimit -v unlimited, or a larger job",
    ),
}


def of_system(error: Exception) -> ToolkitError | None:
    """Return the error for a full disk, a forbidden file, or a limit of this process.

    Return None for any other, which is a fault of ours.
    """
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):  # an ImportError
        error = OSError(errno.ENOMEM, "Cannot allocate memory")
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        error = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    if not isinstance(error, OSError) or error.errno not in _SYSTEM:
        return None
    kind, cause, step = _SYSTEM[error.errno]
    place = str(error.filename) if error.filename else None
    return kind(f"{cause}: {error.strerror}", place=place, next_step=step)
