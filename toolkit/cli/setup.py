"""`toolkit setup`: make this machine ready, or say what it lacks."""

from __future__ import annotations

from typing import Any

import click

from toolkit.cli import console
from toolkit.errors import CommandFailedError
from toolkit.hostsetup import apt
from toolkit.hostsetup.decide import decide, needs, obstacle
from toolkit.hostsetup.facts import read_facts
from toolkit.hostsetup.install import install
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
    actions = decide(facts)
    blocked = obstacle(facts, actions, options)
    if as_json and (check or dry_run or not actions):
        console.out_json(_report(facts, actions))
    if not actions:
        _show_ready(facts, as_json=as_json)
    elif check and not dry_run:
        step = blocked.next_step if blocked else None
        raise needs(facts, actions, options, next_step=step or "toolkit setup")
    elif dry_run and as_json:
        return
    elif blocked:
        raise blocked
    else:
        for action in actions:
            console.say("missing", action.summary)
        if dry_run:
            for line in _plan(facts, actions):
                console.say("plan", line)
            again = f"toolkit setup{' --update' if update else ''}"
            console.say("", f"nothing was done; next: {again}")
            return
        _install(options, as_json=as_json)


def _report(facts: Facts, actions: tuple[Action, ...]) -> dict[str, Any]:
    return {"ready": not actions, "facts": facts, "actions": actions}


def _show_ready(facts: Facts, *, as_json: bool) -> None:
    if not as_json:
        slurm = f"; its own Slurm is kept: {facts.slurm}" if facts.slurm else ""
        text = f"nothing is missing on this machine (containers: {facts.runtime}{slurm})"
        console.fact("ready", text)


def _plan(facts: Facts, actions: tuple[Action, ...]) -> tuple[str, ...]:
    packages = sorted({package for action in actions for package in action.packages})
    if not packages:
        return ("adjustments only, no packages",)
    if not apt.has_lists():
        return ("apt has no package lists yet, so the size is not known (apt-get update)",)
    packages += ["apptainer"] if facts.runtime_offered else []
    try:
        lines = apt.describe(packages)
    except CommandFailedError:
        return ("apt's package lists are too old to tell the size (apt-get update)",)
    has_runtime = (facts.runtime and not facts.updates) or facts.runtime_offered
    return lines if has_runtime else (*lines, "and Debian sid's apptainer")


def _install(options: SetupOptions, *, as_json: bool) -> None:
    with console.Steps() as steps:
        after = install(options, steps)
    left = decide(after)
    if as_json:
        console.out_json(_report(after, left))
    if left:
        raise needs(after, left, options, next_step="toolkit -v setup shows every command")
    _show_ready(after, as_json=as_json)
