"""`toolkit image check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolkit.errors import BuildError

if TYPE_CHECKING:
    from toolkit.model.image import Check


@click.command("check")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(name: str, as_json: bool) -> None:
    """Run the checks that an image carries again, and record how they came out; exit code 74 if one fails."""
    from toolkit.cli import console
    from toolkit.images.build.image_probe import run_checks
    from toolkit.images.store.store import find

    image = find(name)
    if not as_json:
        console.note(console.subject("checking", image.path))
    checks = run_checks(image)
    if as_json:
        import msgspec

        console.out_json([msgspec.to_builtins(check) for check in checks])
    else:
        console.out(
            console.table(
                ("CHECK", "RESULT", "DETAIL"),
                [(check.name, _outcome(check), check.detail) for check in checks],
            )
        )
    failed = [check.name for check in checks if not check.passed]
    if failed:
        raise BuildError(
            f"{image.name} did not pass {len(failed)} of {len(checks)} checks",
            place=", ".join(failed),
        )


def _outcome(check: Check) -> str:
    return "passed" if check.passed else "failed"
