"""`toolkit ssh`: sessions in running jobs, and what lets other programs of OpenSSH open them."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.remote import enter, run_on
from toolkit.cli.shared import cluster_option, complete_runs, runs_option
from toolkit.errors import LoginError, UsageError
from toolkit.files import write_atomically
from toolkit.quoting import shell_words
from toolkit.remote import rsync
from toolkit.runs import ssh
from toolkit.runs.run import Run, find
from toolkit.shell import become

_FOLDER = "toolkit.d"  # in ~/.ssh: a file for each run
# ssh may be called anywhere, and Python would import from there.
_TOOLKIT = ("sh", "-c", 'cd / && exec "$@"', "sh", sys.executable, "-m", "toolkit")
# Of a block: host, user, and the run's directory, in which the keys are.
_BLOCK = re.compile(
    r'Host (\w[\w.+=-]*)\n    User (\S+)\n(?:.*\n)*?    IdentityFile "(/.*)/ssh/user"\n'
)


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
@cluster_option
@click.pass_context
def ssh_command(
    context: click.Context,
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
    options = [f"--node={node}"] * bool(node) + [f"--rank={rank}"] * (rank is not None)
    options += ["--host"] * on_host
    if context.obj:
        words = context.meta["words"]
        if login or not (is_config or install):
            context.exit(run_on(context.obj, words))
        _show(*_block_of_laptop(context.obj, options, words), install=install)
        return
    chosen = find(run, runs)
    if chosen.plan.container.runtime == "docker" and not on_host:
        raise UsageError(
            "a session cannot enter a container of docker, which is not part of the job",
            place="RUN",
            next_step=f"the node itself: toolkit ssh --host {chosen.word}",
        )
    where = "host" if on_host else "image"
    if is_config or install or login:
        chosen.require_own()
        _show(ssh.host_name(chosen), host_block(chosen, options, login), install=install)
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
    # TOOLKIT_ON may name a login node where ssh is called.
    proxy = (*_TOOLKIT, "--on=", "ssh", "--stdio", *options, str(run.directory.absolute()))
    settings = ssh.settings(ssh.prepare(run))
    if login:
        proxy = ("ssh", login, shell_words(proxy))
        names = ("User", "ConnectTimeout", "ServerAliveInterval")
        settings = {name: settings[name] for name in names} | {
            "HostKeyAlias": f"toolkit-{ssh.host_name(run)}",
            "StrictHostKeyChecking": "accept-new",
        }
    return _block(ssh.host_name(run), settings, proxy)


def _block(host: str, settings: dict[str, str], proxy: Sequence[str]) -> str:
    given = settings | {"ProxyCommand": ssh.percent(shell_words(proxy))}
    lines = (f"    {name} {value}\n" for name, value in given.items())
    return f"Host {host}\n{''.join(lines)}"


def _block_of_laptop(login: str, options: list[str], words: list[str]) -> tuple[str, str]:
    """Return the name of a run as a host, and the block by which this machine's ssh reaches it.

    It goes over the connection to the login node, which need not know a key of this machine: that
    of the run is copied to here.

    Raises:
        LoginError: the login node shows something else.
    """
    shown, rest = io.BytesIO(), [word for word in words[1:] if word != "--install"]
    with redirect_stdout(io.TextIOWrapper(shown)) as _:
        if code := run_on(login, ["ssh", "--config", *rest]):
            raise click.exceptions.Exit(code)
        text = shown.getvalue().decode("utf-8", "replace")
    match = _BLOCK.match(text)
    if match is None:
        raise LoginError(
            f"{login} shows no block for ssh",
            place="--on",
            details=text.splitlines()[:6],
            next_step=f"toolkit --on {login} setup",
        )
    host, user, directory = match.groups()
    directory = directory.replace("%%", "%")
    keys = _own_folder() / host
    keys.mkdir(mode=0o700, exist_ok=True)
    sources = (f"on:{directory}/ssh/{name}" for name in ("user", "known_hosts"))
    rsync(login, enter(login, None, Path.cwd()), ("-pt", *sources, f"{keys}/"))
    proxy = (*_TOOLKIT, "--on", login, "ssh", "--stdio", *options, directory)
    return host, _block(host, ssh.settings(keys, user), proxy)


def _own_folder() -> Path:
    folder = Path.home() / ".ssh" / _FOLDER
    for directory in (folder.parent, folder):
        directory.mkdir(mode=0o700, exist_ok=True)
    return folder


def _show(host: str, block: str, *, install: bool) -> None:
    """Print the block of a run, or write it to a file that ~/.ssh/config may include."""
    if not install:
        console.document(block)
        return
    path = _own_folder() / f"{host}.conf"
    write_atomically(path, block, mode=0o600)
    config = path.parent.parent / "config"
    include = f"Include {_FOLDER}/*.conf"
    lines = [("written", str(path)), ("next", f"ssh {host}")]
    if not config.is_file() or include not in config.read_text(errors="replace").splitlines():
        lines.append(("first", f"put the line {include} at the top of {config}"))
    for line in lines:
        console.fact(*line)
