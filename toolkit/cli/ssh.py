"""`toolkit ssh`: sessions in running jobs, and what lets other programs of OpenSSH open them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.main import cluster_option
from toolkit.cli.shared import complete_runs, runs_option
from toolkit.errors import UsageError
from toolkit.files import write_atomically
from toolkit.quoting import shell_words
from toolkit.runs import ssh
from toolkit.runs.directories import find
from toolkit.runs.run import Run
from toolkit.shell import become

_FOLDER = "toolkit.d"  # in ~/.ssh: a file for each run


@click.command("ssh", context_settings={"allow_interspersed_args": False})
@click.option("--node", help="Node of the job (default: the first).")
@click.option("--rank", type=click.IntRange(0), help="The node of this rank.")
@click.option("--host", "on_host", is_flag=True, help="On the node itself, outside of the image.")
@click.option("--config", "is_config", is_flag=True, help="Print a Host block for ssh, and stop.")
@click.option("--install", is_flag=True, help=f"Write that block to a file in ~/.ssh/{_FOLDER}.")
@click.option(
    "--login",
    metavar="[USER@]HOST",
    help="The block is for another machine, which reaches this one by this name.",
)
@click.option("--stdio", is_flag=True, hidden=True, help="Be the ProxyCommand of such a block.")
@click.argument("run", shell_complete=complete_runs)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@runs_option
@cluster_option()
def ssh_command(
    run: str,
    command: tuple[str, ...],
    node: str | None,
    rank: int | None,
    on_host: bool,
    is_config: bool,
    install: bool,
    login: str | None,
    stdio: bool,
    runs: Path,
) -> None:
    """Open a session on a node of a running job, in its image.

    It has the directories, variables and GPUs of the job, and ends with it. Several words of
    COMMAND arrive as they are; one word is a line for the shell. The exit code is the command's,
    or 255 if there is no connection.

    It is OpenSSH through a step of the job: nothing listens, and no node needs to take ssh. With
    the Host block, `ssh train-0007`, scp, sftp, rsync and VS Code open sessions, too.

    \b
    Examples:
      toolkit ssh train-0007
      toolkit ssh --rank 3 train-0007 nvidia-smi
      toolkit ssh --host train-0007 'ps aux | grep python'
      toolkit ssh --install train-0007
      toolkit ssh --config --login me@login.site train-0007
    """
    chosen = find(run, runs)
    if chosen.plan.container.runtime == "docker" and not on_host:
        raise UsageError(
            "a session cannot enter a container of docker, which is not part of the job",
            place="RUN",
            next_step=f"the node itself: toolkit ssh --host {chosen.word}",
        )
    options = [f"--node={node}"] * bool(node) + [f"--rank={rank}"] * (rank is not None)
    where = "host" if on_host else "image"
    if is_config or install or login:
        chosen.require_own()
        block = host_block(chosen, [*options, *["--host"] * on_host], login)
        console.document(_installed(chosen, block) if install else block)
        return
    door = ssh.locate(chosen, node=node, rank=rank)
    if stdio:
        become(door.proxy(where), ssh.environment())
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    words = command if len(command) == 1 else [shell_words(command)] * bool(command)
    become([*door.client(terminal, where), *words], ssh.environment())


def host_block(run: Run, options: list[str], login: str | None) -> str:
    """Return the block of ssh_config(5) by which ssh reaches a run.

    Args:
        run: one of the user's own.
        options: of `toolkit ssh`, which say what node.
        login: the name of this machine on the one that the block is for, which has none of the
            run's keys; None: the block is for this machine.
    """
    proxy = (sys.executable, "-m", "toolkit", "ssh", "--stdio", *options)
    command = shell_words((*proxy, str(run.directory.absolute())))
    settings = ssh.settings(run)
    if login:
        command = shell_words(("ssh", login, command))
        names = ("User", "ConnectTimeout", "ServerAliveInterval")
        settings = {name: settings[name] for name in names} | {
            "HostKeyAlias": f"toolkit-{ssh.host_name(run)}",
            "StrictHostKeyChecking": "accept-new",
        }
    settings["ProxyCommand"] = ssh.percent(command)
    lines = (f"    {name} {value}\n" for name, value in settings.items())
    return f"Host {ssh.host_name(run)}\n{''.join(lines)}"


def _installed(run: Run, block: str) -> str:
    """Write the block of a run to a file that ~/.ssh/config may include; return what to do next."""
    path = Path.home() / ".ssh" / _FOLDER / f"{ssh.host_name(run)}.conf"
    for directory in (path.parent.parent, path.parent):
        directory.mkdir(mode=0o700, exist_ok=True)
    write_atomically(path, block, mode=0o600)
    config = path.parent.parent / "config"
    include = f"Include {_FOLDER}/*.conf"
    lines = [("written", str(path)), ("next", f"ssh {ssh.host_name(run)}")]
    if not config.is_file() or include not in config.read_text(errors="replace").splitlines():
        lines.append(("first", f"put the line {include} at the top of {config}"))
    return "\n".join(console.subject(*line) for line in lines)
