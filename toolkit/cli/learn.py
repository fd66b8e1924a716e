"""`toolkit docs`, `jobs`, `demo` and `setup`: what comes with the tool, and what it needs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.main import cli
from toolkit.cli.shared import cluster_option, completion, json_option
from toolkit.config import shipped
from toolkit.errors import UsageError
from toolkit.quoting import shell, shell_words
from toolkit.workshops import exercises

# Lines that begin so are marks of the tests and pictures.
_HIDDEN = ("<!-- ", "![")
_CONTENTS = re.compile(r"^```\{toctree\}\n(?::.*\n)*\n*([^`]*)```\n", re.MULTILINE)


def topics() -> dict[str, Path]:
    """Return the file of each topic: ``how-to/run`` is ``how-to/run/index.md``."""
    directory = shipped("docs")
    names = {
        str(path.relative_to(directory).with_suffix("")): path for path in directory.rglob("*.md")
    }
    return {
        name.removesuffix("/index"): path
        for name, path in sorted(names.items())
        if not name.startswith("contributing/")
    }


def title(path: Path) -> str:
    """Return the heading of a page."""
    with path.open(encoding="utf-8") as file:
        return file.readline().strip("# \n")


def page_text(topic: str) -> str:
    """Return a page without the marks that only the site needs.

    The last part of a topic is enough if no other topic ends with it.

    Raises:
        UsageError: no page has this topic.
    """
    known = topics()
    name = topic.strip("/").removesuffix(".md")
    ends = [full for full in known if full.endswith(f"/{name}")]
    if name not in known and len(ends) == 1:
        name = ends[0]
    if name not in known:
        raise UsageError(
            f"no page is called {topic!r}",
            place="TOPIC",
            choices=known,
            value=name,
            next_step="toolkit docs",
        )
    page = _CONTENTS.sub(r"\1", known[name].read_text(encoding="utf-8"))
    lines = (line for line in page.split("\n") if not line.startswith(_HIDDEN))
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


@click.command("docs")
@click.argument("topic", required=False, shell_complete=completion(topics))
def docs(topic: str | None) -> None:
    """Print a page of the documentation, or list the pages.

    On a terminal the page opens in your pager ($PAGER). Errors name their page.

    \b
    Examples:
      toolkit docs
      toolkit docs first-run
      toolkit docs run/pending
    """
    if topic is None:
        rows = [(name, title(path)) for name, path in topics().items()]
        console.out(console.table(("TOPIC", "PAGE"), rows))
        return
    text = page_text(topic)
    if console.on_terminal():
        click.echo_via_pager(text)
    else:
        console.document(text)


@click.command("list")
@json_option
def list_jobs(as_json: bool) -> None:
    """List the exercises.

    \b
    Example:
      toolkit jobs list
    """
    listed = [
        {"name": name, "image": job.image or "", "summary": job.summary or ""}
        for name, job in exercises.exercises().items()
    ]
    rows = [(each["name"], each["image"] or "-", each["summary"]) for each in listed]
    console.listing(("NAME", "IMAGE", "SHOWS"), rows, listed, as_json=as_json)


@click.command("copy")
@click.argument("name", shell_complete=completion(exercises.exercises))
@click.argument("directory", required=False, type=click.Path(path_type=Path))
def copy(name: str, directory: Path | None) -> None:
    """Copy the exercise NAME to DIRECTORY (default: one of its name, here).

    \b
    Examples:
      toolkit jobs copy digits-ddp
      toolkit jobs copy digits-ddp ~/first
    """
    target = directory or Path(Path(name).name)
    exercises.copy(name, target)
    console.fact("copied", str(target))
    word = str(target) if "/" in str(target) else f"./{target}"
    console.fact("next", f"toolkit run {shell(word)}")


@click.command("demo")
@click.option(
    "--image", default="pytorch_cpu", show_default=True, help="Recipe to build and to train in."
)
@click.option("--keep", is_flag=True, help="Leave the cluster up.")
@cluster_option
def demo(image: str, keep: bool) -> int:
    """Run everything once: image, cluster, training on two nodes.

    Build an image, start a cluster of two nodes, train on 2 nodes x 2 ranks, show the result, and
    stop the cluster. Every step is a command that you could type;
    it is printed before it runs.

    \b
    Examples:
      toolkit demo
      toolkit demo --keep     and then: TOOLKIT_CLUSTER=demo toolkit run jobs/digits-horovod
    """
    os.environ["TOOLKIT_CLUSTER"] = "demo"  # where all runs of this process go
    _type("image", "build", image)
    try:
        _type("cluster", "up", "--name", "demo", "--nodes", "2")
        code = _type("run", "--image", image, "jobs/digits-ddp")
        _type("results")
    finally:
        if not keep:
            _type("cluster", "down", "--name", "demo")
    then = "toolkit run --image pytorch_cpu --nodes 2 your-script.py"
    console.fact("next", f"toolkit cluster up, then {then}")
    return code


def _type(*words: str) -> int:
    """Show a command and run it, as if it had been typed."""
    console.note("")
    console.note("$ toolkit " + shell_words(words))
    result = cli.main(list(words), prog_name="toolkit", standalone_mode=False)
    return result if isinstance(result, int) else 0


@click.command("setup")
@click.option(
    "--check", is_flag=True, help="Install nothing; exit with code 72 if something is missing."
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option(
    "--with",
    "extras",
    multiple=True,
    type=click.Choice(["accounting", "tests"]),
    help="Install also what sacct (slurmdbd, MariaDB) or the test suite needs.",
)
@click.option("--update", is_flag=True, help="Install the newest Apptainer of Debian's unstable.")
@click.option("--python", metavar="PATH", help="With --on: Python 3.10 or later there.")
@click.option(
    "--directory", metavar="DIR", help="With --on: where trees and runs go (default: scratch)."
)
@click.pass_obj
def setup(
    login: str,
    check: bool,
    dry_run: bool,
    extras: tuple[str, ...],
    update: bool,
    python: str | None,
    directory: str | None,
) -> None:
    """Install what this machine lacks, such as Apptainer or Slurm.

    Programs that are installed already are kept. Debian is set up automatically (as root);
    on other systems, and without root, what an administrator has to install is shown.

    With --on, the toolkit of this machine is installed or updated in your home directory on the
    login node, with an environment of its own (python3 -m venv).

    \b
    Examples:
      toolkit setup
      toolkit --on neuron setup
      toolkit setup --check
      toolkit setup --with accounting --with tests
      toolkit setup --update
    """
    from toolkit.hostsetup.decide import is_able, missing, needs
    from toolkit.hostsetup.facts import read_facts
    from toolkit.hostsetup.install import install

    if (check or dry_run or extras or update) if login else (python or directory):
        cause = "--python and --directory are the options of a set-up with --on, and no others"
        raise UsageError(cause, place="--on")
    if login:
        from toolkit.cli.remote import set_up

        set_up(login, python, directory)
        return
    facts = read_facts(extras, updates=update)
    texts = missing(facts)
    if texts and (check or not is_able(facts)):
        raise needs(facts, extras)
    console.say_all(("missing", text) for text in texts)
    if texts and dry_run:
        console.say("", f"nothing was done; next: {needs(facts, extras).next_step}")
        return
    if texts:
        with console.Steps() as steps:
            facts = install(extras, steps, updates=update)
        if missing(facts):
            raise needs(facts, extras)
    console.fact("ready", f"nothing is missing on this machine (containers: {facts.runtime})")
