"""`toolkit --on LOGIN`, `push` and `pull`: commands that run on a login node, from a laptop."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from pathlib import Path

import click

from toolkit import __version__, git, sites
from toolkit.cli import console
from toolkit.cli.shared import FIRST_PORT
from toolkit.config import package_directory, shipped
from toolkit.errors import LoginError, LoginLostError, NoSpaceError, UsageError
from toolkit.files import write_atomically
from toolkit.planning.settings import SENT, SLURM_VARIABLE, chosen, variables
from toolkit.quoting import shell as quoted
from toolkit.quoting import shell_with_variables, shell_words
from toolkit.remote import connect, hop, put, rsync, run
from toolkit.runs.code import IGNORE, choose, names_of
from toolkit.runs.run import index_file
from toolkit.units import counted, human_size, whole

HOME = "~/.local/share/toolkit/on"  # of what is installed on a login node
MOST_BYTES, MOST_FILES = 200_000_000, 20_000
# --env NAME=PATH, --bind=PATH:TARGET, or a path alone.
_PATH = re.compile(r"(?P<before>(?:-*[\w-]+=)?)(?P<path>[^:]+)(?P<after>.*)\Z", re.DOTALL)
# Where a server's connections arrive here.
_PLACE = "\0--(port|socket)(?:=|\0)((?<=socket.)[^\0]+|[0-9]+)(?=\0|$)"
# They only show something, however they are called: they are repeated over a new connection.
_READING = ("explain", "logs", "ps", "report", "results", "stacks", "top", "usage")
# The working tree goes with these, as their first words.
_SENDING = ("run", "shell", "bench", "image build", "image import", "image lock")
# The job whose submission was the only one since the tree was sent.
_RESUME = """\
sent=$PWD/{sent}
set -- $(cd {runs} 2>/dev/null && find . -maxdepth 2 -name run.json -newer "$sent")
[ $# = 1 ] || {{ echo "it is not known which run this was; next: toolkit ps" >&2; exit 102; }}
name=${{1%/run.json}}; set -- logs -f "${{name#./}}"
"""
_INSTALL = """\
cd {home} || exit
rm -f call-*
for python in {pythons}; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break
    python=
done
[ -n "$python" ] || {{ echo "no Python 3.10 or later; --python names one" >&2; exit 72; }}
venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear venv || exit
venv/bin/python -m pip install --quiet --disable-pip-version-check {requirements} || exit
for packages in venv/lib/python3*/site-packages; do echo "$PWD/lib" > "$packages/toolkit.pth"; done
{{ echo "#!$PWD/venv/bin/python"; echo "from toolkit.cli.main import main; main()"; }} > toolkit
chmod +x toolkit
place={place}/toolkit-on
mkdir -p "$place" && chmod 700 "$place" && echo {version} > version && printf %s "$place" > place
echo "trees and runs go to $place"
"""
# A server's connections arrive in a directory that only this user can enter.
_HOP = """\
mkdir -m 700 {directory} || exit
trap 'rm -rf {directory}' EXIT; trap : INT TERM HUP
export TOOLKIT_HOP={arrival}
exec=
"""
# At level 1, a bash that sshd's environment reaches would read .bashrc, as a login shell does.
_CALL = """\
export TOOLKIT_ON= SHLVL=2
[ "$(cat {home}/version)" = {version} ] || echo "warning: next: toolkit --on {login} setup" >&2
${{exec-exec}} {home}/toolkit "$@"
"""


def run_on(login: str, words: list[str]) -> int:
    """Run a command of the toolkit on a login node, and return its exit code.

    A server in a job is reached at a port of this machine.

    Raises:
        LoginError: it cannot be reached, or the connection was lost in a command that acts.
        UsageError: a path is outside of the tree.
    """
    connect(login, console.say)
    if words[0] in ("forward", "notebook") and words[1:2] != ["stop"]:
        return _serve(login, words)
    return _run(login, words, "")


def _serve(login: str, words: list[str]) -> int:
    """Run a command that serves at a port or socket of this machine, by way of one there.

    One that only connects is repeated after a lost connection.
    """
    from toolkit.runs.ssh import Entrance, target

    line = "\0".join(words)
    places = dict(re.findall(_PLACE, line))
    words = re.sub(_PLACE, "", line).split("\0")
    # The server's own port, if an ordinary user may listen there.
    same = [word for word in words[2:] if words[0] == "forward" and (whole(word) or 0) > 1023]
    entrance = (
        Entrance(Path(places["socket"]).absolute())
        if "socket" in places
        else Entrance(Path(), int(target(places.get("port") or [str(FIRST_PORT), *same][-1])))
    )
    entrance.require_free()
    arrival = quoted(entrance.address if entrance.port else str(entrance.path))
    at = 2 if words[1:2] in (["start"], ["connect"]) else 1
    while True:
        directory = f"/tmp/toolkit-on-{os.urandom(8).hex()}"
        before = _HOP.format(directory=directory, arrival=arrival)
        try:
            with hop(login, entrance.address, f"{directory}/s"):
                return _run(login, [*words[:at], f"--socket={directory}/s", *words[at:]], before)
        except LoginLostError as error:
            if words[0] == "notebook" and words[1:2] != ["connect"]:
                raise
            _reconnect(login, error)
        finally:
            entrance.remove_dead()


def _run(login: str, words: list[str], before: str) -> int:
    cwd = Path.cwd()
    root = git.top(cwd)
    name, group = words[0], " ".join(words[:2])
    rest = words[1:] if root is None else [translated(word, root, cwd) for word in words[1:]]
    place, call = enter(login, root, cwd), before + _call(login, words, cwd)
    script = f"{place}; set -- {shell_words((name, *rest))}\n{call}"
    is_notebook = name == "notebook" and words[1:2] not in (["connect"], ["stop"])
    sends = is_notebook or name in _SENDING or group in _SENDING
    terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    printed = dict[bytes, int]() if name in ("logs", "run") and "--pty" not in words else None
    while True:
        command, has_begun = script, False
        try:
            if sends:
                send(login, cwd)
            if name not in _READING:  # it may have secrets: other users see a list of processes
                path = f"{HOME}/call-{os.urandom(8).hex()}"
                # Those of commands that a lost connection kept from running go, too.
                stale = f"find {HOME} -maxdepth 1 -name 'call-*' -mmin +60 -delete"
                receive = f"{enter(login, None, cwd)}; {stale}; umask 077; cat > {path}"
                put(login, receive, f"rm -f {path}\n{script}")
                command = f". {path}"
            has_begun = True
            return run(login, command, terminal=terminal, printed=printed)
        except LoginLostError as error:
            # What was done before is lost, too, such as a hop.
            if before or (has_begun and name not in ("run", *_READING)):
                raise
            _reconnect(login, error)
        if has_begun and name == "run":
            sent, runs = quoted(f"{os.path.relpath(root or cwd, cwd)}/{SENT}"), chosen(cwd).runs
            script = f"{place}; {_RESUME.format(sent=sent, runs=quoted(runs))}{call}"
            sends = False


def _call(login: str, words: list[str], cwd: Path) -> str:
    """Return commands of sh that run the toolkit on a login node.

    The command gets the variables of this shell that are settings of jobs, and those that options
    and settings name.
    """
    names = {f"TOOLKIT_{name}" for name in ("CLUSTER", "ON_NAMED", "RUNS", "SITE", "VERBOSE")}
    if words[0] not in _READING:
        names |= {*re.findall(r"--(?:env|secret)[=\0](\w+)(?![\w=])", "\0".join(words))}
        names |= {*variables(), *chosen(cwd).secret, *chosen(cwd).pass_env}
        names |= {name for name in os.environ if name.startswith(SLURM_VARIABLE)}
    exports = [f"export {name}={quoted(os.environ[name])}\n" for name in names & {*os.environ}]
    return "".join(exports) + _CALL.format(home=HOME, version=__version__, login=quoted(login))


def _reconnect(login: str, error: LoginLostError) -> None:
    """Connect again, for as long as a laptop may sleep or travel.

    Raises:
        LoginLostError: that did not succeed.
    """
    console.note("")
    console.say("lost", f"{error.cause}; connecting again")
    for pause in (1, 2, 4, 8, *(15,) * 40):  # seconds
        try:
            return connect(login, lambda *_: None)
        except LoginError:
            time.sleep(pause)
    raise error


def enter(login: str, root: Path | None, cwd: Path, *, sends: bool = False) -> str:
    """Return commands of sh that go to the current directory's counterpart on a login node.

    Without a tree that is the place of all trees. Two machines with equal paths have two trees.
    """
    step = f"the toolkit is not installed on {login}; next: toolkit --on {login} setup"
    check = f"[ -s {HOME}/place ] || {{ echo {quoted(step)} >&2; exit 72; }}"
    place = f'{check}; cd "$(cat {HOME}/place)" || exit'
    if root is None:
        return place
    number = hashlib.sha256(os.fsencode(f"{os.uname().nodename}\0{root}")).hexdigest()[:8]
    name = f"{re.sub('[^A-Za-z0-9._-]+', '-', root.name).strip('-.') or 'tree'}-{number}"
    folder = quoted(f"./{cwd.relative_to(root)}")
    make = f"mkdir -p {name}/{folder} && cd {name} && touch {SENT}"
    return f"{place}; {make if sends else f'cd {name} 2>/dev/null && cd {folder} 2>/dev/null'}"


def translated(word: str, root: Path, cwd: Path) -> str:
    """Return a word of a command with a path in the tree relative to the current directory.

    A path on the login node alone stays as it is, and so does what begins with ``//``.

    Raises:
        UsageError: the path is here, and outside of the tree.
    """
    match = _PATH.match(word)
    if match is None or match["path"].startswith("//"):
        return word
    # Not by pathlib, which fails on words that cannot be paths.
    is_absolute, is_here = match["path"][0] == "/", os.path.exists(cwd / match["path"])  # noqa: PTH110
    real = Path(os.path.realpath(cwd / match["path"])) if is_here or is_absolute else root
    if real.is_relative_to(root):
        short = f"{match['before']}./{os.path.relpath(real, cwd)}{match['after']}"
        return short if is_absolute else word
    if is_absolute and not (is_here and real.is_relative_to(os.path.realpath(Path.home()))):
        return word  # of the login node
    raise UsageError(
        f"{match['path']} is outside of {root}, which is all that goes to the login node",
        place=word,
        next_step="move it there; a path of the login node begins with //",
    )


def send(login: str, cwd: Path, *, yes: bool = False) -> None:
    """Make the tree on a login node the same as here; files that are only there stay.

    Args:
        login: the login node.
        cwd: a directory in the tree, which is made there.
        yes: do not ask, however large it is.

    Raises:
        NoSpaceError: it is large, and the user does not agree.
        UsageError: git does not know the directory.
        CommandFailedError: rsync fails.
    """
    root = git.top(cwd)
    if root is None:
        raise UsageError(
            f"{cwd} is not in a git work tree; what git does not ignore goes to the login node",
            place="--on",
            next_step="git init, and a .gitignore for data and results; no commit is needed",
        )
    sizes, left_out = choose(root, names_of(root, cwd / (chosen(cwd).runs or "runs"), "--on"))
    number = hashlib.sha256(os.fsencode(f"{login}\0{root}")).hexdigest()[:12]
    record = index_file().parent / "on" / number
    before = record.read_text().split("\0") if record.is_file() else ()
    gone = [name for name in before if name and not os.path.lexists(root / name)]
    options = ("-lptz", "--from0", "--files-from=-", "--delete-missing-args", "--chmod=go-w")
    # For rsync a name that begins with "#" or ";" is a comment.
    names = "\0".join(f"./{name}" for name in (*sizes, *gone))
    words = (*options, f"{root}/", "on:./")
    prepare, total = enter(login, root, cwd, sends=True), sum(sizes.values())
    if (total > MOST_BYTES or len(sizes) > MOST_FILES) and not yes:
        rows = rsync(login, prepare, ("--dry-run", "--out-format=%i %l", *words), names)
        new = [int(row.split()[-1]) for row in rows.splitlines() if row[1:2] == "f"]
        text = f"{human_size(sum(new))} in {counted(len(new), 'file')} to {login}"
        is_large = sum(new) > MOST_BYTES or len(new) > MOST_FILES
        if is_large and not (sys.stdin.isatty() and click.confirm(f"send {text}?", err=True)):
            raise NoSpaceError(
                f"not sent: {text}",
                place="--on",
                next_step=f"name data in {IGNORE}, or: toolkit --on {login} push --yes",
            )
    with console.Steps() as progress:
        progress.begin("send", f"{counted(len(sizes), 'file')}, {human_size(total)}")
        rsync(login, prepare, words, names)
    write_atomically(record, "\0".join(sizes))
    if left_out:
        more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        console.say("", f"left out: {', '.join(left_out[:5])}{more}")


@click.command("push")
@click.option("--yes", is_flag=True, help="Do not ask, however large it is.")
@click.option("--dry-run", is_flag=True, help="List the files that would be there, and stop.")
@click.pass_obj
def push(login: str, yes: bool, dry_run: bool) -> None:
    """Send the working tree to a login node (--on).

    `toolkit run` does it before each run. What git tracks or does not ignore goes there, without
    what .toolkitignore names (patterns as in .gitignore), files of secrets, and runs.

    \b
    Examples:
      toolkit --on neuron push
      toolkit --on neuron push --dry-run
    """
    cwd = Path.cwd()
    if not dry_run:
        connect(login, console.say)
        send(login, cwd, yes=yes)
        return
    root = git.top(cwd) or cwd
    sizes, _ = choose(root, names_of(root, cwd / (chosen(cwd).runs or "runs"), "--on"))
    for name, size in sizes.items():
        console.out(f"{human_size(size):>7}  {name}")


@click.command("pull")
@click.argument("run_name", metavar="RUN")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.pass_obj
def pull(login: str, run_name: str, paths: tuple[str, ...]) -> None:
    """Copy the files of a run from a login node (--on).

    They go to the directory of runs here. RUN is its name. Each PATH is a file or directory that
    its ranks wrote, relative to the current directory, and is copied to the same place here.

    \b
    Examples:
      toolkit --on neuron pull train-0007
      toolkit --on neuron pull train-0007 checkpoints/
    """
    cwd = Path.cwd()
    runs = chosen(cwd).runs or "runs"
    sources = [os.path.normpath(name) for name in (f"{runs}/{run_name}", *paths)]
    if any(name.startswith(("/", "..")) or name == "." for name in sources):
        raise UsageError("only what is below the current directory is copied", place="PATH")
    connect(login, console.say)
    place = enter(login, git.top(cwd), cwd)
    with console.Steps() as progress:
        progress.begin("pull", run_name)
        for name in sources:
            # A directory here may be a link of the user's own, such as runs/ to a larger disk.
            target = (cwd / name).parent
            target.mkdir(parents=True, exist_ok=True)
            secrets = os.path.relpath(cwd / runs / "*/secrets", target)
            # Links that lead out are left out, and what is newer here stays.
            options = ("-rltz", "--safe-links", "--update", f"--exclude=/{secrets}")
            rsync(login, place, (*options, f"on:./{name}", f"{target}/"))
    console.fact("pulled", " ".join(map(quoted, sources)))


def set_up(login: str, python: str | None, directory: str | None) -> None:
    """Install or update the toolkit of this machine in the user's home on a login node.

    Args:
        login: the login node.
        python: of the login node; None: the first that is new enough.
        directory: where trees and runs go; None: the site's scratch.

    Raises:
        LoginError: that fails.
    """
    from importlib import metadata

    connect(login, console.say)
    package, site = package_directory(""), chosen(Path.cwd()).site or "auto"
    kinds = [shipped(kind) for kind in ("recipes", "containers", "jobs", "docs")]
    sources = [package, *(path for path in kinds if not path.is_relative_to(package))]
    scratch = directory or (sites.load(site).scratch if site != "auto" else None)
    script = _INSTALL.format(
        home=HOME,
        pythons=quoted(python) if python else "python3 python3.14 python3.13 python3.12 python3.11",
        requirements=shell_words(
            text
            for text in metadata.requires("slurm-container-toolkit") or ()
            if "extra ==" not in text
        ),
        place=shell_with_variables(scratch) if scratch else '"${SCRATCH:-$HOME}"',
        version=__version__,
    )
    with console.Steps() as progress:
        progress.begin("send", f"toolkit {__version__}")
        prepare = f"mkdir -p {HOME}/lib && chmod 700 {HOME} && cd {HOME}/lib"
        words = ["-rltz", "--delete", "--delay-updates", "--exclude=__pycache__", "--exclude=*.sif"]
        rsync(login, prepare, (*words, *map(str, sources), "on:./"))
        progress.begin("install", "Python packages")
        if (code := run(login, script)) != 0:
            raise LoginError(f"the set-up of {login} ended with exit code {code}", place="setup")
