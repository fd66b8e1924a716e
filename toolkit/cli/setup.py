"""`toolkit setup`: make this machine ready, or say what it lacks."""

from __future__ import annotations

from time import time
from typing import Any

import click

from toolkit.cli import console
from toolkit.errors import CommandFailedError, ToolkitError
from toolkit.hostsetup import apt, newer
from toolkit.hostsetup.decide import decide, needs, obstacle
from toolkit.hostsetup.facts import read_facts
from toolkit.hostsetup.install import announcement, install
from toolkit.hostsetup.model import Action, Facts, SetupOptions


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
@click.option(
    "--update",
    is_flag=True,
    help="Install a newer Apptainer from Debian's unstable, if the present one came from there.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the facts, and what is to be done, as JSON."
)
def command(
    check: bool, dry_run: bool, extras: tuple[str, ...], update: bool, as_json: bool
) -> None:
    """Install what this machine lacks, such as Apptainer or Slurm.

    Programs that are installed already are kept. Debian is set up automatically (as root);
    on other systems, and without root, the commands for the administrator are shown.

    \b
    Examples:
      toolkit setup
      toolkit setup --check
      toolkit setup --with accounting --with tests
      toolkit setup --update
    """
    options = SetupOptions(
        accounting="accounting" in extras, tests="tests" in extras, update=update
    )
    facts = read_facts(options)
    if not check and not dry_run and _refresh_newer(facts, always=update):
        facts = read_facts(options)
    actions = decide(facts)
    if as_json and (check or dry_run or not actions):
        console.out_json(report(facts, actions))
    if not actions:
        _ready(facts, as_json)
    elif dry_run:
        _dry_run(facts, actions, options, as_json)
    elif check:
        raise needs(facts, actions, options, next_step=_how(facts, actions, options))
    else:
        _install(facts, actions, options, as_json)


def report(facts: Facts, actions: tuple[Action, ...]) -> dict[str, Any]:
    """Facts and actions as plain data."""
    return {"ready": not actions, "facts": facts, "actions": actions}


def _refresh_newer(facts: Facts, *, always: bool) -> bool:
    """Check once a week, as root, for a newer Apptainer than the fitted one.

    Return whether it checked.
    """
    if not (facts.root and facts.apt and facts.runtime):
        return False

    if not (always or newer.is_due(time())) or not newer.fitted(facts.os.codename):
        return False
    problem = newer.refresh(facts.os.codename, time())
    if problem:
        console.say("warning", f"could not check for a newer Apptainer: {problem.cause}")
    return True


def _ready(facts: Facts, as_json: bool) -> None:
    if facts.newer:
        line = f"{'' if facts.root else 'as root: '}{facts.toolkit} setup --update"
        console.say("newer", f"apptainer {facts.newer} is in Debian's unstable; install it: {line}")
    if not as_json:
        slurm = f"; its own Slurm is kept: {facts.slurm}" if facts.slurm else ""
        console.fact(
            "ready", f"nothing is missing on this machine (containers: {facts.runtime}{slurm})"
        )


def _how(facts: Facts, actions: tuple[Action, ...], options: SetupOptions) -> str:
    blocked = obstacle(facts, actions, options)
    return blocked.next_step or "toolkit setup" if blocked else "toolkit setup"


def _show_missing(actions: tuple[Action, ...]) -> None:
    for number, action in enumerate(actions):
        for more, part in enumerate(action.summary.split("; ")):
            console.say("missing" if not number and not more else "", part)


def _dry_run(
    facts: Facts, actions: tuple[Action, ...], options: SetupOptions, as_json: bool
) -> None:
    if as_json:
        return
    blocked = obstacle(facts, actions, options)
    if blocked:
        raise blocked
    _show_missing(actions)
    console.say("plan", _estimate(facts, actions))
    console.say("", f"nothing was done; next: toolkit setup{' --update' if options.update else ''}")


def _estimate(facts: Facts, actions: tuple[Action, ...]) -> str:
    packages = sorted({package for action in actions for package in action.packages})
    if not packages:
        return "adjustments only, no packages"
    if not apt.has_lists():
        return (
            "apt has no package lists yet, so the size is not known before it has (apt-get update)"
        )
    if facts.runtime_offered:
        packages.append("apptainer")
    try:
        (line,) = announcement(apt.estimate(packages), None, facts.os.codename)
    except CommandFailedError:
        return "apt's package lists are too old to tell the size (apt-get update)"
    return (
        line
        if (facts.runtime and not facts.newer) or facts.runtime_offered
        else f"{line}; and Debian sid's apptainer"
    )


def _install(
    facts: Facts, actions: tuple[Action, ...], options: SetupOptions, as_json: bool
) -> None:
    blocked = obstacle(facts, actions, options)
    if blocked:
        raise blocked
    _show_missing(actions)
    with console.Steps() as steps:
        after = install(options, steps)
    left = decide(after)
    if as_json:
        console.out_json(report(after, left))
    if left:
        error: ToolkitError = needs(
            after, left, options, next_step="toolkit -v setup shows every command"
        )
        raise error
    if not as_json:
        _ready(after, as_json)
