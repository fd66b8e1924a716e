"""Measure builds after a change of the last step: ours, Apptainer's and BuildKit's, in turns.

The base is the contents of an image that was built before, with copies of its large libraries until
there are at least 2 GB. A copy has each byte replaced by another, so that it packs as well as the
original and is equal to nothing that is there already. Each side has the base in its own store
before anything is timed, and has built all steps once, also the first two, which install two small
packages each. What is timed is the whole process that builds after a change of the last step:

- ``install``: pip installs pandas from wheels that lie in the base, so that no network is timed.
- ``line``: one line of shell. Nothing is done, so this is what each side costs by itself.

Then the images that came out are started, the one in layers beside the one that Apptainer packed
flat.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from benchmarks import engine, measure, peers
from benchmarks.build_base import BASE, SIZE, large_directory, made, unpack
from benchmarks.measure import environment, ourselves
from toolkit import shell
from toolkit.cli import console
from toolkit.cli.main import main
from toolkit.errors import CommandFailedError
from toolkit.images.builder.apptainer.programs import COMPRESSION, program_version
from toolkit.images.host.privilege import build_command
from toolkit.images.recipe import library
from toolkit.shell import Progress

PARTS = ("install", "line", "start")
FLAT_BAR, BUILDKIT_BAR, START_BAR = 0.2, 1.2, 1.1
LINE_BAR = 3.0  # BuildKit neither packs nor checks: what is left of that when nothing is done
_INSTALL = "pip install --quiet --no-compile --no-index --find-links /opt/bench-wheels pandas"
_PYTHON = "/opt/venv/bin"


@dataclass
class Setting:
    """The directories and the engine of one measurement.

    Attributes:
        base: the directory with the contents of the base.
    """

    place: Path
    base: Path
    engine: engine.Engine
    env: Mapping[str, str]
    changes: int = 0

    def changed(self, last: str) -> tuple[str, ...]:
        """Return the steps with a last one that was never built before."""
        self.changes += 1
        return (
            "mkdir /opt/first",
            "mkdir /opt/second",
            f"{last} && echo {os.getpid()}.{self.changes} > /opt/changed",
        )


def run(runs: int, parts: Sequence[str], progress: Progress) -> list[measure.Outcome]:
    """Measure the parts (of ``PARTS``), ``runs`` times each.

    Raises:
        ImageMissingError: the image that the base is made of is not built.
        ToolkitError: something that is compared does not work.
    """
    cache = peers.cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        place = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="tk-bench-", dir=large_directory(cache))
            )
        )
        progress.begin("base", f"contents of {BASE}, and copies up to {SIZE / 1e9:.1f} GB")
        base = unpack(place)
        progress.end()
        running = stack.enter_context(engine.running(made(place / "engine")))
        setting = Setting(
            place,
            base,
            running,
            environment(os.environ, cache / "byte-code")
            | {"TOOLKIT_IMAGES": str(place / "images")},
        )
        _prepare(setting, progress)
        outcomes = list(_builds(setting, runs, parts, progress))
        return [*outcomes, *(_starts(setting, runs, progress) if "start" in parts else ())]


def _prepare(setting: Setting, progress: Progress) -> None:
    """Give each side the base and a first build, neither of which is timed."""
    progress.begin("buildkit", "the base becomes an image of the engine")
    tar = shell.start(["tar", "--create", "--directory", setting.base, "."])
    assert tar.stdout
    client = [setting.engine.client, "import", "-", "bench:base"]
    taken = shell.start(client, stdin=tar.stdout.fileno(), env=setting.engine.environment)
    output = taken.communicate()[1]
    if tar.wait() != 0 or taken.returncode != 0:
        raise CommandFailedError(
            "the engine did not take the base",
            place="docker import",
            details=output.splitlines()[-5:],
        )
    _buildkit(setting, "true")
    progress.begin("ours", "the base is packed, once")
    _ours(setting, "true")
    progress.end()


def _recipe(setting: Setting, last: str) -> Path:
    steps = "".join(
        f'[[steps]]\nblock = "run"\nname = "step-{number}"\ncommands = [{json.dumps(command)}]\n'
        for number, command in enumerate(setting.changed(last), 1)
    )
    path = setting.place / "bench.toml"
    path.write_text(
        f'summary = "benchmark"\n[base]\nkind = "localimage"\npath = "{setting.base}"\n'
        f"[space]\nimage = 2000\nbuild = 4000\n{steps}"
    )
    return path


def _ours(setting: Setting, last: str) -> float:
    recipe = _recipe(setting, last)
    return measure.seconds(
        [*ourselves(), "image", "build", str(recipe)],
        cwd=setting.place,
        env=setting.env,
        timeout=1800,
    )


def _flat(setting: Setting, last: str) -> float:
    """Build the definition of our recipe with Apptainer itself, which packs as we do."""
    chosen = build_command()
    definition = setting.place / "flat.def"
    definition.write_text(library.render(library.load(str(_recipe(setting, last)))))
    argv = [
        chosen.program,
        "build",
        "--force",
        *chosen.options,
        "--mksquashfs-args",
        " ".join(COMPRESSION),
    ]
    scratch = setting.place / "scratch"
    scratch.mkdir(exist_ok=True)
    env = {**setting.env, "APPTAINER_TMPDIR": str(scratch), "APPTAINER_CACHEDIR": str(scratch)}
    return measure.seconds(
        [*argv, str(setting.place / "flat.sif"), str(definition)],
        cwd=setting.place,
        env=env,
        timeout=1800,
    )


def _buildkit(setting: Setting, last: str) -> float:
    context = setting.place / "context"
    context.mkdir(exist_ok=True)
    steps = "".join(
        f"RUN export PATH={_PYTHON}:$PATH && {command}\n" for command in setting.changed(last)
    )
    (context / "Dockerfile").write_text(f"FROM bench:base\n{steps}")
    argv = [
        setting.engine.client,
        "build",
        "--quiet",
        "--network=host",
        "--tag",
        "bench:built",
        str(context),
    ]
    return measure.seconds(argv, cwd=setting.place, env=setting.engine.environment, timeout=1800)


def _builds(
    setting: Setting, runs: int, parts: Sequence[str], progress: Progress
) -> Iterator[measure.Outcome]:
    last = {"install": f"PATH={_PYTHON}:$PATH {_INSTALL}", "line": "true"}
    flat = measure.Side(
        name=f"apptainer build ({program_version(build_command().program)})",
        argv=(),
        shown="apptainer build flat.sif flat.def",
    )
    kit = measure.Side(
        name=f"BuildKit (docker {setting.engine.version})",
        argv=(),
        shown="DOCKER_BUILDKIT=1 docker build",
    )
    ours = measure.Side(name="toolkit", argv=(), shown="toolkit image build bench.toml")
    compared: tuple[tuple[str, measure.Side, Callable[[Setting, str], float], float], ...] = (
        ("install", kit, _buildkit, BUILDKIT_BAR),
        ("line", kit, _buildkit, LINE_BAR),
        ("install", flat, _flat, FLAT_BAR),
    )
    for what, side, timed, bar in compared:
        if what not in parts and not (timed is _flat and "start" in parts):
            continue
        progress.begin(what, f"{runs} runs and {runs} by {side.name}")
        # Ours and BuildKit's are warmed up once; Apptainer has nothing that a warm-up could fill.
        step, warm_ups = last[what], 0 if timed is _flat else 1
        pairs = measure.alternate(
            partial(_ours, setting, step),
            partial(timed, setting, step),
            runs=runs,
            warm_ups=warm_ups,
        )
        progress.end()
        yield measure.judge(
            measure.Comparison(what=f"last step: {what}", ours=ours, peer=side, bar=bar), pairs
        )


def _starts(setting: Setting, runs: int, progress: Progress) -> Iterator[measure.Outcome]:
    """Compare the start of both images.

    ``true`` shows the start alone; ``import torch`` is the first step of a training, and reads
    500 MB of the image.
    """
    program = build_command().program
    commands: dict[str, Sequence[str]] = {
        "true": ("true",),
        "import torch": (f"{_PYTHON}/python3", "-c", "import torch"),
    }
    for name, command in commands.items():
        sides = [
            measure.Side(
                name=kind,
                argv=(program, "exec", str(path), *command),
                shown=f"apptainer exec {path.name} {name}",
            )
            for kind, path in (
                ("in layers", setting.place / "images/bench.sif"),
                ("flat", setting.place / "flat.sif"),
            )
        ]
        comparison = measure.Comparison(
            what=f"start: {name}", ours=sides[0], peer=sides[1], bar=START_BAR
        )
        progress.begin("start", name)
        yield measure.measure(
            comparison,
            runs=runs * 5 if name == "true" else runs,
            cwd=setting.place,
            env=setting.env,
        )
        progress.end()


@click.command("build")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs of each side, in turns.",
)
@click.option(
    "--only",
    type=click.Choice(PARTS),
    multiple=True,
    help="Measure this part only; may be repeated. `start` builds the flat image, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(context: click.Context, runs: int, only: tuple[str, ...], as_json: bool) -> None:
    """Change the last step of an image with a base of 2 GB, and measure the next build.

    Ours is compared with `apptainer build` and BuildKit.

    \b
      install  the last step installs pandas by pip, from wheels in the base
      line     the last step is one line of shell: what each side costs by itself
      start    `apptainer exec` of what came out, beside the flat image

    Needs the image pytorch_cpu, 12 GB of disk, and Docker: the engine of DOCKER_HOST, or root
    starts one. The exit code is 1 if a bar is missed.
    """
    from benchmarks.cli import show

    with console.Steps() as steps:
        outcomes = run(runs, only or PARTS, steps)
    if as_json:
        import msgspec

        console.out_json(msgspec.to_builtins(outcomes))
    else:
        show(outcomes)
    context.exit(0 if all(outcome.held for outcome in outcomes) else 1)


if __name__ == "__main__":
    main(command, "python -m benchmarks.build")
