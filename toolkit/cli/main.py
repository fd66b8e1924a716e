"""The command `toolkit`: import the module of the verb, and turn errors into messages.

Every error ends the process with the exit code of its kind.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

# Modules stay: to examine them again and again takes a tenth of the start.
gc.set_threshold(100_000)

import click

from toolkit import __version__
from toolkit.config import settings_files
from toolkit.errors import InternalError, ToolkitError, UsageError, of_system

# Heading -> name -> (MODULE:FUNCTION in this package, the first line of its help).
Commands = Mapping[str, Mapping[str, tuple[str, str]]]


def _choose_cluster(_context: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    """Have everything in this process, and what it starts, mean this local cluster."""
    if name is None:
        return
    from toolkit.localcluster.paths import require_name

    require_name(name, "--cluster")
    os.environ["TOOLKIT_CLUSTER"] = name


def cluster_option(*, is_hidden: bool) -> Callable[[Any], Any]:
    """Return the option that names the local cluster.

    Every command takes it; help shows it only for those that are decorated with that of ``shared``.
    """
    return click.option(
        "--cluster",
        metavar="NAME",
        is_eager=True,  # defaults of other options depend on it
        expose_value=False,
        hidden=is_hidden,
        callback=_choose_cluster,
        help="Local cluster (default: $TOOLKIT_CLUSTER, else local).",
    )


class Group(click.Group):
    """A group whose commands are imported when they are used.

    For a slip it names the nearest command.

    Args:
        table: the commands, in the order of the help.
        alone: what the group does without arguments.
        implied: name of the command that need not be written before its arguments.
    """

    def __init__(
        self,
        *arguments: Any,
        table: Commands,
        alone: str = "--help",
        implied: str = "",
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._table, self._alone, self._implied = table, alone, implied
        self.entries = {name: entry for rows in table.values() for name, entry in rows.items()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put in what need not be written."""
        if not args:
            args = [self._alone]
        elif self._implied and args[0] not in (*self.entries, "-h", "--help", "--cluster"):
            args = [self._implied, *args]
        given = list(args)
        rest = super().parse_args(ctx, args)
        ctx.meta.setdefault("words", given[len(given) - len(ctx.args) - 1 :])
        return rest

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands without importing them."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and return the command."""
        del ctx
        if cmd_name not in self.entries:
            return None
        module, function = self.entries[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(f"toolkit.cli.{module}"), function)
        if not any("--cluster" in parameter.opts for parameter in command.params):
            cluster_option(is_hidden=True)(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in the arguments; name the nearest one if there is none."""
        name = args[0] if args else ""
        if not name or name.startswith("-") or name in self.entries:
            return super().resolve_command(ctx, args)
        names, help_line = self.list_commands(ctx), f"{ctx.command_path} --help"
        error = UsageError(f"there is no command {name!r}", choices=names, value=name)
        error.next_step = help_line if error.close else f"one of {', '.join(names)}; {help_line}"
        raise error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their summaries, section by section."""
        del ctx
        for section, rows in self._table.items():
            with formatter.section(section):
                formatter.write_dl([(name, summary) for name, (_, summary) in rows.items()])


COMMANDS: Commands = {
    "Start and learn": {
        "demo": ("learn:demo", "Run everything once: image, cluster, training on two nodes."),
        "docs": ("learn:docs", "Print a page of the documentation, or list the pages."),
        "jobs": ("groups:jobs", "List and copy the exercises that come with the toolkit."),
        "setup": ("learn:setup", "Install what this machine lacks, such as Apptainer or Slurm."),
        "workshop": ("groups:workshop", "Give a workshop, or join one."),
    },
    "Run": {
        "pull": ("remote:pull", "Copy the files of a run from a login node (--on)."),
        "push": ("remote:push", "Send the working tree to a login node (--on)."),
        "notebook": ("groups:notebook", "Serve notebooks from a node: JupyterLab in an image."),
        "run": ("run:command", "Run a training script on the nodes of a cluster, in an image."),
        "shell": ("connect:shell", "Open a shell in an image, on a node of the cluster."),
    },
    "Follow runs": {
        "explain": ("follow:explain_command", "Explain why a run failed or waits, and what to do."),
        "forward": (
            "connect:forward_server",
            "Reach a server in a running job, such as TensorBoard.",
        ),
        "logs": ("runs:show_logs", "Show or follow what the ranks of a run printed."),
        "ps": ("runs:ps", "List the runs of this directory and their states, the newest first."),
        "report": ("cost:report", "Show how much a run used of what it got: CPU, memory, GPUs."),
        "results": ("runs:results", "Show the results of a run, or of each point of a sweep."),
        "ssh": ("ssh:ssh_command", "Open a session on a node of a running job, in its image."),
        "stacks": (
            "runs:ask_stacks",
            "Ask the ranks of a running job where they are, such as one that hangs.",
        ),
        "top": ("runs:top", "Show what a running job uses: CPU, memory, GPUs."),
    },
    "End and remove runs": {
        "cancel": ("runs:cancel", "Cancel runs, by name or job id; their logs are kept."),
        "prune": ("runs:prune", "List old runs; with --yes, remove them."),
        "rm": ("runs:rm", "Remove runs, with their scripts, logs and all other files."),
    },
    "Images and clusters": {
        "cluster": (
            "groups:cluster",
            "Show free nodes of a cluster; run a real Slurm on this machine.",
        ),
        "image": ("groups:image", "Build, find, check and share images."),
        "site": ("groups:site", "Show and describe clusters: partitions, limits, rules."),
    },
    "Check and measure": {
        "bench": (
            "groups:bench",
            "Measure all-reduce, compare trainings, and measure how they scale.",
        ),
        "doctor": ("check:doctor", "Check this machine and the cluster before jobs run."),
        "lint": ("check:lint_files", "Find faults in existing sbatch scripts, and fix them."),
        "usage": ("cost:usage", "Show CPU and GPU hours, how jobs ended, and their waits."),
    },
}
# They run here, whatever login node the settings name; and those that know what to do with one.
_LOCAL, _BOTH = ("docs", "jobs", "lint"), ("pull", "push", "setup", "ssh")


@click.group(
    cls=Group,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="toolkit %(version)s")
@cluster_option(is_hidden=False)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    envvar="TOOLKIT_VERBOSE",
    help="Print each command that is run, as a line that you can paste.",
)
@click.option(
    "--on",
    metavar="LOGIN",
    help="Run the command on this login node, by ssh (default: $TOOLKIT_ON, else that of the "
    'settings; "" is this machine).',
)
@click.pass_context
def cli(context: click.Context, verbose: bool, on: str | None) -> None:
    """Run a train.py correctly on many GPUs of many nodes, in a container, with one command.

    \b
    Examples:
      toolkit cluster up --nodes 2
      toolkit image build pytorch_cpu
      toolkit run --image pytorch_cpu --nodes 2 --ntasks-per-node 2 train.py --epochs 12

    \b
    Documentation, offline: toolkit docs
      toolkit docs first-run     your first run in five minutes
      toolkit docs run           guides to running, one for each task
      toolkit docs image         the same for images; site, teach, workshop

    Tab completion for bash: eval "$(_TOOLKIT_COMPLETE=bash_source toolkit)"
    """
    if verbose:
        from toolkit import shell

        shell.set_echo(True)
    if any(name.startswith("TOOLKIT_") for name in os.environ):
        from toolkit.cli import console
        from toolkit.planning.settings import unknown_variables

        for text in unknown_variables(os.environ):
            console.say("warning", text)
    words = context.meta["words"]
    named = 2 if cli.entries.get(words[0], ("",))[0].startswith("groups:") else 1
    if on:  # commands that messages name
        os.environ["TOOLKIT_ON_NAMED"] = f"--on {on} "
    login = os.environ.get("TOOLKIT_ON") if on is None else on
    is_local = words[0] in _LOCAL or words[named : named + 1] in (["-h"], ["--help"])
    with suppress(FileNotFoundError):  # the current directory was removed
        if login is None and not is_local and any(settings_files(Path.cwd())):
            from toolkit.planning.settings import chosen_login

            login = chosen_login(Path.cwd())
    context.obj = "" if is_local else login or ""
    if context.obj and words[0] not in _BOTH:
        context.exit(import_module("toolkit.cli.remote").run_on(context.obj, words))


def usage_error(error: click.UsageError) -> UsageError:
    """Return click's error as one of ours, with the nearest option."""
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
    place = None
    text = error.format_message()
    if isinstance(error, click.BadParameter) and error.param and error.message:
        is_option = error.param.param_type_name == "option"
        place = error.param.opts[0] if is_option else error.param.human_readable_name
        text = error.message
    text = text.rstrip(".").removeprefix("Got ")
    return UsageError(text[:1].lower() + text[1:], place=place, next_step=help_line)


def main(command: click.Command = cli, name: str = "toolkit") -> NoReturn:
    """Run a command line, and end the process with its exit code."""
    from toolkit.cli import console

    try:
        code = command.main(prog_name=name, standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, click.Abort):
        console.note("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`head`, a pager) has gone; what is left unwritten is of no use.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as raised:
        error = as_ours(raised)
        console.show_error(error)
        sys.exit(error.exit_code)
    finally:
        gc.freeze()  # the end of a process examines all that is left, for nothing


def as_ours(error: Exception) -> ToolkitError:
    """Return the error that is shown for an exception; for a bug it has the traceback."""
    if isinstance(error, click.UsageError):
        return usage_error(error)
    if (known := error if isinstance(error, ToolkitError) else of_system(error)) is not None:
        return known
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd, or a socket
        try:
            Path.cwd()
        except FileNotFoundError:
            step = "cd to another one; what ran there: toolkit ps --all-directories"
            return UsageError("the current directory has been removed", next_step=step)
    import traceback

    return InternalError(
        f"the toolkit has a bug: {type(error).__name__}",
        details="".join(traceback.format_exception(error)).splitlines(),
        next_step="report this message with the command; toolkit ps lists jobs that go on",
    )
