"""`toolkit docs`: the pages of the documentation, offline."""

from __future__ import annotations

import click

from toolkit.cli import console


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param
    from toolkit.pages import topics

    return [topic for topic in topics() if topic.startswith(incomplete)]


@click.command("docs")
@click.argument("topic", required=False, shell_complete=_complete)
def command(topic: str | None) -> None:
    """Print a page of the documentation, or list the pages.

    On a terminal the page opens in your pager ($PAGER). Errors name their page.

    \b
    Examples:
      toolkit docs
      toolkit docs quick-start
      toolkit docs run/pending
    """
    from toolkit import pages

    if topic is None:
        rows = [(name, pages.title(path)) for name, path in pages.topics().items()]
        console.out(console.table(("TOPIC", "PAGE"), rows))
        return
    text = pages.text(topic)
    if console.on_terminal():
        click.echo_via_pager(pages.wrapped(text, min(console.columns(), 100)))
    else:
        console.document(text)
