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
        step: the next step where an error names none.
    """

    exit_code: int = 70
    kind: str = "internal"
    page: str = GENERAL_PAGE
    step: str | None = None

    def __init_subclass__(
        cls, *, exit_code: int = 0, kind: str = "", page: str = "", step: str | None = None
    ) -> None:
        cls.exit_code = exit_code or cls.exit_code
        cls.kind = kind or cls.kind
        cls.page = page or cls.page
        cls.step = step

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
        self.next_step = next_step or self.step
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
        place = f"{self.place}: " if self.place else ""
        source = f" ({self.source})" if self.source else ""
        step = f"; {self.advice}" if self.advice else ""
        return f"{place}{self.cause}{source}{step}"


class UsageError(ToolkitError, exit_code=64, kind="usage"):
    """The command line or the value of an option is invalid."""


class PlanError(ToolkitError, exit_code=65, kind="plan", page="run/refused"):
    """The job could not run on the site, for reasons of several kinds.

    They are in ``findings``. Where all of them are of one kind, the exit code is theirs.
    """

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


class ScriptMissingError(ToolkitError, exit_code=66, kind="script", page="run"):
    """The training script, or the job folder, does not exist."""


class UnknownImageError(ToolkitError, exit_code=67, kind="image name", page="image/build"):
    """No recipe, image or file has this name."""


class ImageMissingError(ToolkitError, exit_code=68, kind="image", page="image/build"):
    """The recipe is known, but its image is not built, or incomplete."""


class SlurmUnreachableError(
    ToolkitError,
    exit_code=69,
    kind="slurm",
    page="site/doctor",
    step="on a cluster: log in to a login node. Without one: toolkit cluster up "
    "(a real Slurm on this machine)",
):
    """No Slurm answers."""


class CommandFailedError(ToolkitError, exit_code=71, kind="command"):
    """An outside program failed for an unknown reason."""


class NeedsInstallError(ToolkitError, exit_code=72, kind="missing program", page="site/install"):
    """A program or package is missing on this machine."""


class NoSpaceError(ToolkitError, exit_code=73, kind="disk space", page="run/clean-up"):
    """A file system has too little free space."""


class BuildError(ToolkitError, exit_code=74, kind="build", page="image/build"):
    """An image could not be built, or did not pass its checks."""


class BusyError(ToolkitError, exit_code=75, kind="busy"):
    """Another user or process holds a resource; it will be free later."""


class SubmissionError(ToolkitError, exit_code=76, kind="submission", page="run/refused"):
    """Slurm refused the job."""


class ForbiddenError(ToolkitError, exit_code=77, kind="permission"):
    """The user lacks the permission for this action."""


class ConfigError(ToolkitError, exit_code=78, kind="file"):
    """A recipe, site, job or settings file is broken."""


class UnknownLauncherError(ToolkitError, exit_code=79, kind="launcher", page="running"):
    """No launcher has this name."""


class UnknownPartitionError(ToolkitError, exit_code=80, kind="partition", page="run/refused"):
    """The site has no such partition."""


class ShapeError(ToolkitError, exit_code=81, kind="shape", page="run/refused"):
    """More nodes, GPUs, CPUs or time than the site has."""


class BindMissingError(ToolkitError, exit_code=82, kind="bind", page="run/refused"):
    """A mounted directory or file, or the working directory, does not exist on the nodes."""


class ClusterError(ToolkitError, exit_code=83, kind="local cluster", page="teach/local-cluster"):
    """The local cluster could not be started, or is not in the state that is needed."""


class UnknownRunError(ToolkitError, exit_code=84, kind="run name", page="run/detach"):
    """No run has this name."""


class UnknownSiteError(ToolkitError, exit_code=85, kind="site", page="site/describe"):
    """No site has this name."""


class LauncherMismatchError(ToolkitError, exit_code=86, kind="launcher and image", page="running"):
    """The launcher cannot work with this image or this site."""


class JobLostError(ToolkitError, exit_code=87, kind="job lost", page="run/explain"):
    """The job ended without an exit code of its own: a node failed, or Slurm forgot it."""


class SignatureError(ToolkitError, exit_code=88, kind="signature", page="image/share"):
    """An image or workshop lacks its signature, or is not what was signed or locked."""


class SlurmSilentError(
    SlurmUnreachableError,
    exit_code=89,
    kind="slurm silent",
    step="try again when sinfo gets an answer. On a local cluster: toolkit cluster status",
):
    """There is a Slurm, but its controller gives no answer within the time that is allowed."""


class UnknownRuntimeError(ToolkitError, exit_code=90, kind="runtime", page="running"):
    """No runtime has this name."""


class EnvironmentMissingError(ToolkitError, exit_code=91, kind="environment", page="run/conda"):
    """No conda environment has this name, or it has no Python."""


class PreflightError(ToolkitError, exit_code=92, kind="preflight", page="site/doctor"):
    """Checks failed: of `toolkit doctor`, or of `workshop join` and `rehearse`."""


class UnrecordedError(ToolkitError, exit_code=93, kind="job not recorded", page="run/clean-up"):
    """Slurm has the job, but its number could not be recorded."""


class UntrustedError(ToolkitError, exit_code=94, kind="untrusted file", page="site/trust"):
    """A file or directory belongs to another user, or others can write to it."""


class MalformedInputError(ToolkitError, ValueError, exit_code=95, kind="malformed input"):
    """A file, archive or answer does not follow its format; none of it is used."""


class LimitError(ToolkitError, exit_code=96, kind="limit"):
    """A limit of this shell or machine is reached: of open files, of a file's size, of memory."""


class ImportsMissingError(ToolkitError, exit_code=97, kind="imports", page="image/extend"):
    """The script imports a module that the Python of its ranks does not have."""


class RegressionError(ToolkitError, exit_code=98, kind="regression", page="run/scale"):
    """A training is slower than in an earlier study, beyond the noise of both."""


class LoginError(ToolkitError, exit_code=101, kind="login node", page="run/laptop"):
    """A login node cannot be reached, or does not run the toolkit."""


class LoginLostError(LoginError, exit_code=102, kind="connection lost"):
    """The connection to a login node was lost while a command ran."""


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
