"""`toolkit bench explain`."""

from __future__ import annotations

from pathlib import Path

import click

_LOGS = Path(__file__).resolve().parents[3] / "tests" / "golden" / "explain"


@click.command("explain")
@click.option(
    "--logs", type=click.Path(path_type=Path, file_okay=False), default=_LOGS, help="Directory of captured logs; default: the checkout's."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, logs: Path, as_json: bool) -> None:
    """Count how many failures are named rightly, and how many healthy logs are left alone. The bar is all; ends with 1 where one is missed.

    The rules were written with these logs at hand: what is counted is that none of them gets in another's way, not how they do on logs that
    nobody has seen yet.
    """
    from toolkit.bench.explain import count
    from toolkit.cli import console

    found = count(logs)
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(found))
    else:
        rows = [(one.kind, one.right, one.right + len(one.wrong), "; ".join(one.wrong)) for one in found]
        console.out(console.table(("LOGS", "RIGHT", "OF", "WRONG"), rows))
    context.exit(1 if any(one.wrong for one in found) else 0)
