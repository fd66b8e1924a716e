"""Options, arguments, tab completions and steps that several commands share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolkit.cli import console, main
from toolkit.errors import PreflightError

if TYPE_CHECKING:
    from toolkit.checks import Result
    from toolkit.model.case import Case
    from toolkit.model.run import Point, PointOutcome

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
Decorator = Callable[[AnyFunction], AnyFunction]


def options(*decorators: Decorator[Any]) -> Decorator[Any]:
    """Return the decorator that gives a command several options, in this order."""

    def decorate(function: AnyFunction) -> AnyFunction:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def pattern(
    name: str,
    form: str,
    example: str,
    convert: Callable[[re.Match[str]], Any] = lambda match: match[0],
) -> Callable[[str], Any]:
    """Return the type of an option whose text has a form.

    Args:
        name: what it is, with its article, for the message.
        form: a regular expression of the whole text.
        example: such a text.
        convert: returns the value; by default it is the text.
    """

    def read(text: str) -> Any:
        match = re.fullmatch(form, str(text), re.ASCII)
        if match is None:
            raise click.BadParameter(f"{text!r} is not {name}; an example is {example}")
        return convert(match)

    return read


_UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0, "m": 30 * 86400.0}
AGE = pattern(
    "an age",
    r"(\d{1,12})([hdwm])",
    "30d; h, d, w and m are hours, days, weeks and months",
    lambda match: int(match[1]) * _UNITS[match[2]],
)


def completion(
    names: Callable[[], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the tab completion that offers these names, sorted."""
    return lambda _ctx, _param, incomplete: sorted(_offered(names(), incomplete))


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names to offer: none that the shell, which gets them as they are, would obey."""
    return [name for name in names if name.startswith(incomplete) and shlex.quote(name) == name]


@completion
def complete_images() -> Iterable[str]:
    """Return the names of recipes and built images."""
    from toolkit.images.store import store

    return {*store.list_recipes(), *store.image_names(store.images_directory())}


@completion
def complete_sites() -> Iterable[str]:
    """Return the names of sites."""
    from toolkit import sites

    return ("auto", *sites.names())


def complete_runs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete RUN by the runs in the directory of ``--runs``."""
    from toolkit.runs.run import all_runs

    runs = all_runs(ctx.params.get("runs") or Path("runs"))
    return _offered((paths.name for paths in runs), incomplete)


def with_image(case: Case, gather: Callable[[], Case]) -> Case:
    """Return the case of a run, gathered again if its image had to be fetched from a registry."""
    if not case.image.to_fetch:
        return case
    from toolkit.api.run import fetch_image

    with console.Steps() as progress:
        fetch_image(case, progress)
    return gather()


INTERRUPTED = 130  # as a shell reports Ctrl-C
FIRST_PORT = 8888  # of the user's own machine, as Jupyter itself takes it
DETACHED = 99  # a followed job that goes on


def require_passed(results: Sequence[Result], what: str) -> None:
    """Raise PreflightError with the names of the checks that failed, and what that means."""
    failures = [result.name for result in results if result.outcome == "failed"]
    if failures:
        cause = f"{len(failures)} of {len(results)} {what}"
        raise PreflightError(cause, place=", ".join(failures))


cluster_option = main.cluster_option(is_hidden=False)

json_option = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")


def _chosen_runs(_ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path:
    """Return the directory of runs; in a completion, click ignores that the settings are broken."""
    from toolkit.planning.settings import chosen

    return value or Path(chosen(Path.cwd()).runs or "runs")


runs_option = click.option(
    "--runs",
    type=click.Path(path_type=Path),
    callback=_chosen_runs,
    help="Directory of the runs (default: that of the settings, else runs).",
)

run_argument = click.argument("run", required=False, shell_complete=complete_runs)

run_names_argument = click.argument(
    "run_names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs
)


def site_option(help_text: str, *, default: str | None = None) -> Decorator[Any]:
    """Return the option that names a site."""
    return click.option(
        "--site", metavar="NAME", shell_complete=complete_sites, default=default, help=help_text
    )


def gpus_option(help_text: str, *, smallest: int = 1) -> Decorator[Any]:
    """Return the option for the number of GPUs on each node."""
    return click.option(
        "--gpus-per-node", "--gpus", "gpus", type=click.IntRange(smallest), help=help_text
    )


def node_job_options(*, minutes: int) -> Decorator[Any]:
    """Return the options of sbatch for the short jobs that examine nodes.

    Args:
        minutes: the default time limit.
    """
    return options(
        click.option("--partition", "-p", help="Partition of these jobs."),
        click.option(
            "--time", default=str(minutes), show_default=True, help="Time limit of these jobs."
        ),
        click.option("--comment", help="Slurm's comment, if the site requires one."),
        click.option("--account", "-A", help="Account of these jobs."),
    )


def points_table(planned: Sequence[Point], outcomes: Sequence[PointOutcome]) -> str:
    """Return a table with a row for each point.

    A row has the point's number, its values, its state, its exit code, and the results that are
    not lists or mappings.
    """
    values = {point.number: dict(point.values) for point in planned}
    names = list(dict.fromkeys(name for point in planned for name, _ in point.values))
    scalars = dict.fromkeys(
        key
        for point in outcomes
        for key, value in point.results.items()
        if not isinstance(value, dict | list)
    )
    results = [key for key in scalars if key not in names]
    rows = [
        [
            point.number,
            *(values.get(point.number, {}).get(name, "-") for name in names),
            point.state,
            "-" if point.exit_code is None else point.exit_code,
            *(
                f"{value:.4g}" if isinstance(value, float) else "-" if value is None else value
                for value in map(point.results.get, results)
            ),
        ]
        for point in outcomes
    ]
    return console.table(["POINT", *names, "STATE", "EXIT", *results], rows)
