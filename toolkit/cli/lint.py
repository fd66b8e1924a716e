"""`toolkit lint`: what is wrong with an sbatch script that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from toolkit.lint.model import Context, Finding


@click.command("lint")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--site",
    "site_name",
    help="The cluster that the scripts are for: its partitions, comments and modules are looked at too.",
)
@click.option(
    "--fix",
    is_flag=True,
    help="Mend what is mechanical, in the file; the original is kept: FILE.orig, FILE.orig.2, ...",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_context
def command(
    context: click.Context, files: tuple[Path, ...], site_name: str | None, fix: bool, as_json: bool
) -> None:
    """Find what is wrong with sbatch scripts: which line, what comes of it, and what to write in its place.

    Nothing is run. "-" reads a script from standard input. Ends with 1 where an error was found, warnings alone end with 0.

    \b
    Examples:
      toolkit lint job.sbatch
      toolkit lint --site neuron --fix job.sbatch
    """
    from toolkit import sites
    from toolkit.cli import console

    site = sites.load(site_name) if site_name else None
    found: dict[str, tuple[Finding, ...]] = {}
    for file in files:
        from toolkit.lint.reading import context_of, read

        text = read(file)
        given = context_of(file, text, site)
        if fix and str(file) != "-":
            text = _fix(file, text, given)
            given = context_of(file, text, site)
        from toolkit.lint import lint

        found[str(file)] = lint(text, given)
    if as_json:
        import msgspec

        console.out_json({name: msgspec.to_builtins(findings) for name, findings in found.items()})
    else:
        for name, findings in found.items():
            _show(name, findings)
        if site:
            from toolkit.preflight.model import source_of

            console.note(
                f"checked against the file of {source_of(site)}; the cluster itself was not asked"
            )
    errors = any(finding.severity == "error" for findings in found.values() for finding in findings)
    context.exit(1 if errors else 0)


def _fix(file: Path, text: str, given: Context) -> str:
    from toolkit.cli import console
    from toolkit.lint import fixed
    from toolkit.lint.saving import save

    new, mended = fixed(text, given)
    if not mended:
        return text
    original = save(file, new)
    for finding in mended:
        console.note(console.subject("mended", f"{file}:{finding.line} {finding.message}"))
    console.note(console.subject("kept", str(original)))
    return new


def _show(name: str, findings: tuple[Finding, ...]) -> None:
    from toolkit.cli import console
    from toolkit.units import counted

    for finding in findings:
        console.out(
            f"{name}:{finding.line}: {finding.severity}: {finding.message} [{finding.rule}]"
        )
        console.out(f"    why   {finding.why}")
        if finding.advice:
            console.out(
                f"    write {finding.advice}" if finding.fix else f"    next  {finding.advice}"
            )
    errors = sum(finding.severity == "error" for finding in findings)
    mendable = sum(bool(finding.fix) for finding in findings)
    tail = f"; --fix corrects {mendable}" if mendable else ""
    console.note(
        f"{name}: {counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}{tail}"
    )
