"""`toolkit bench build`: how long a changed image takes to build again, beside Apptainer and BuildKit."""

from __future__ import annotations

import click

from toolkit.cli import console


@click.command("build")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs of each side, in turns.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, runs: int, as_json: bool) -> None:
    """Change the last step of an image with a base of 2 GB, and build it again: ours, `apptainer build`, BuildKit.

    \b
      install  the last step installs pandas by pip, from wheels in the base
      line     the last step is one line of shell: what each side costs by itself
      start    `apptainer exec` of what came out, beside the flat image

    Needs the image pytorch_cpu, 12 GB of disk, and Docker: the engine of DOCKER_HOST, or root starts one.
    Ends with 1 where a bar is missed.
    """
    from toolkit.bench import build
    from toolkit.cli.bench.cli import show

    with console.Steps() as steps:
        outcomes = build.run(runs, steps)
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(outcomes))
    else:
        show(outcomes)
    context.exit(0 if all(outcome.held for outcome in outcomes) else 1)
