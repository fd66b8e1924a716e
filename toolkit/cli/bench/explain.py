"""`toolkit bench explain`."""

from __future__ import annotations

from pathlib import Path

import click

_LOGS = Path(__file__).resolve().parents[3] / "tests" / "golden" / "explain"


@click.command("explain")
@click.option(
    "--logs",
    type=click.Path(path_type=Path, file_okay=False),
    default=_LOGS,
    help="Directory of captured logs; default: the checkout's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, logs: Path, as_json: bool) -> None:
    """Count how many failures are named rightly, and how many healthy logs are left alone; end with 1 if a bar is missed.

    Three sets, each with its bar: known (rules were made from these logs: all), later (captured
    afterwards, used for no rule: 90 %, and nothing wrong called certain), healthy (of runs that
    succeeded, many with frightening words: all).
    """
    from toolkit.bench.explain import count
    from toolkit.cli import console

    found = count(logs)
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(found))
    else:
        rows = [
            (
                one.kind,
                one.right,
                one.right + len(one.wrong),
                one.certain,
                "held" if one.held else "MISSED",
                "; ".join(one.wrong),
            )
            for one in found
        ]
        console.out(console.table(("LOGS", "RIGHT", "OF", "WRONGLY CERTAIN", "BAR", "WRONG"), rows))
    context.exit(0 if all(one.held for one in found) else 1)
