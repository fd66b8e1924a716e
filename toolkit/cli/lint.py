"""`toolkit lint`: find faults in sbatch scripts."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit import sites
from toolkit.checks import Result
from toolkit.cli import console
from toolkit.cli.shared import json_option, site_option
from toolkit.lint.files import context_of, read, save
from toolkit.lint.linter import fixed, lint, report, to_json
from toolkit.lint.rules import RULES
from toolkit.lint.script import Context
from toolkit.units import counted


def _list_rules(context: click.Context, parameter: click.Parameter, is_wanted: bool) -> None:
    """Print the rules, and end the command, which needs files otherwise."""
    del parameter
    if is_wanted:
        rows = [(rule.name, rule.about) for rule in RULES]
        console.out(console.table(("RULE", "WHAT MUST HOLD"), rows))
        context.exit()


@click.command("lint")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@site_option("The cluster of the scripts: its partitions, comments and modules are checked too.")
@click.option(
    "--fix",
    is_flag=True,
    help="Fix what is mechanical, in the file; the original becomes FILE.orig, FILE.orig.2, ...",
)
@click.option(
    "--rules",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_rules,
    help="List the rules, and stop.",
)
@json_option
@click.pass_context
def command(
    context: click.Context, files: tuple[Path, ...], site: str | None, fix: bool, as_json: bool
) -> None:
    """Find faults in existing sbatch scripts, and fix them.

    Each is shown with its line, what follows from it, and what to write instead. Nothing is run.
    "-" reads a script from standard input. The exit code is 1 if there is an error, and 0 if there
    are only warnings.

    \b
    Examples:
      toolkit lint job.sbatch
      toolkit lint --site neuron --fix job.sbatch
    """
    loaded = sites.load(site) if site else None
    results: dict[str, tuple[Result, ...]] = {}
    for file in files:
        text = read(file)
        known = context_of(file, text, loaded)
        if fix and str(file) != "-":
            text = _fix(file, text, known)
            known = context_of(file, text, loaded)
        results[str(file)] = lint(text, known)
    if as_json:
        console.out_json({name: [to_json(each) for each in results[name]] for name in results})
    else:
        for name, of_file in results.items():
            _show(name, of_file)
        if loaded:
            console.note(
                f"checked against the file of {loaded.cited}; the live cluster was not checked"
            )
    errors = any(each.outcome == "failed" for of_file in results.values() for each in of_file)
    context.exit(1 if errors else 0)


def _fix(file: Path, text: str, known: Context) -> str:
    new, faults = fixed(text, known)
    if not faults:
        return text
    original = save(file, new)
    for fault in faults:
        console.say("fixed", f"{file}:{fault.line} {fault.message}")
    console.say("original", str(original))
    return new


def _show(name: str, results: tuple[Result, ...]) -> None:
    for result in results:
        for line in report(result, name):
            console.out(line)
    errors = sum(result.outcome == "failed" for result in results)
    fixable = sum(bool(result.edits) for result in results)
    tail = f"; --fix corrects {fixable}" if fixable else ""
    console.note(
        f"{name}: {counted(errors, 'error')}, {counted(len(results) - errors, 'warning')}{tail}"
    )
