"""The command `toolkit`: import the module of the verb, and turn errors into messages.

Every error ends the process with the exit code of its kind.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, NoReturn

# Collecting among freshly imported modules takes a tenth of the start. It is enabled again when the
# verb is imported.
gc.disable()

import click

from toolkit import __version__
from toolkit.cli.lazy import LazyGroup, cluster_option
from toolkit.errors import ForbiddenError, NoSpaceError, ToolkitError, UsageError

# What users want, in the order of the help; each command's module names its own.
SECTIONS = (
    "Start and learn",
    "Run",
    "Follow runs",
    "End and remove runs",
    "Images and clusters",
    "Check and measure",
)


@click.group(
    cls=LazyGroup,
    package="toolkit.cli",
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="toolkit %(version)s")
@cluster_option()
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show every outside command, as a line that can be pasted.",
)
def cli(verbose: bool) -> None:
    """Run a train.py correctly on many GPUs of many nodes, in a container, with one command.

    \b
    Examples:
      toolkit cluster up --nodes 2
      toolkit image build pytorch_cpu
      toolkit run --image pytorch_cpu --nodes 2 --ntasks-per-node 2 train.py --epochs 12

    Tab completion for bash: eval "$(_TOOLKIT_COMPLETE=bash_source toolkit)"
    """
    if verbose:
        from toolkit import shell

        shell.set_echo(True)


def usage_error(error: click.UsageError) -> UsageError:
    """Return click's error as one of ours, with the nearest option or choice."""
    context = error.ctx
    help_line = f"{context.command_path} --help" if context else "toolkit --help"
    if isinstance(error, click.NoSuchOption):
        names = (
            [name for parameter in context.command.params for name in parameter.opts]
            if context
            else []
        )
        from toolkit.meanings import instead_of

        instead = instead_of(error.option_name)
        return UsageError(
            f"there is no option {error.option_name}",
            choices=() if instead else names,
            value=None if instead else error.option_name,
            next_step=instead or help_line,
        )
    if isinstance(error, click.BadParameter) and error.param is not None:
        parameter_type: Any = error.param.type
        choices = tuple(getattr(parameter_type, "choices", ()))
        place = (
            error.param.opts[0]
            if error.param.param_type_name == "option"
            else error.param.human_readable_name
        )
        cause = error.message[:1].lower() + error.message[1:].rstrip(".")
        return UsageError(
            cause or "a value is missing", place=place, choices=choices, next_step=help_line
        )
    return UsageError(error.format_message().rstrip("."), next_step=help_line)


def main(command: click.Command = cli, name: str = "toolkit") -> NoReturn:
    """Run a command line, and end the process with its exit code."""
    from toolkit.cli import console

    try:
        code = command.main(prog_name=name, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.UsageError as error:
        wrong = usage_error(error)
        console.show_error(wrong)
        sys.exit(wrong.exit_code)
    except ToolkitError as error:
        console.show_error(error)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        console.note("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`head`, a pager) has gone; what is left unwritten is of no use.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        failure = file_error(error)
        if failure is None:
            raise
        console.show_error(failure)
        sys.exit(failure.exit_code)


def file_error(error: OSError) -> ToolkitError | None:
    """Return the error for a full disk or a forbidden file.

    Return None for any other, which is a fault of ours.
    """
    import errno

    place = str(error.filename) if error.filename else None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(
            f"nothing more can be written: {error.strerror}",
            place=place,
            next_step="make room there, then try again",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ForbiddenError(
            f"a file cannot be used: {error.strerror}",
            place=place,
            next_step="see whose it is: ls -ld",
        )
    return None
