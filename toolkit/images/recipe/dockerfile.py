"""A recipe as a Dockerfile, for BuildKit and for podman.

BuildKit is that of Docker 18.09 or later with DOCKER_BUILDKIT=1, or 23 as it is. No heredocs and no
``# syntax=`` line: older engines know neither, and the second needs a network. Mounts of the host's
configuration are put into this text by the builder (``images/builder/docker``), so that a reader's
Dockerfile is clean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from toolkit.errors import ConfigError
from toolkit.images.recipe.block import CHECKS, SOURCES, WHEELS
from toolkit.images.recipe.plan import STEP, Plan, Step
from toolkit.images.recipe.quoting import (
    escape_expanding,
    quote_for_docker,
    quote_word,
    to_plain_text,
)

_NEXT = " \\"
_OPEN = re.compile(r"(?: then| do| else|\{|&&|\|\||\|)\s*$")  # a command goes on in the next line
# Outside, what the builder itself puts there, or no word of a flag.
_NOT_IN_CONTEXT = re.compile(r"(\.\.?|Dockerfile|wheels)(/|\Z)|.*[\s,\"'\\$]")
_TAKES = f"--mount=type=bind,from=build,source={WHEELS},target={WHEELS} "


def render(plan: Plan, labels: Mapping[str, str]) -> str:
    """Return the text of a Dockerfile."""
    parts = [
        _comment(plan),
        (
            f"ARG BASE={plan.base.output().dockerfile}",
            "FROM ${BASE} AS common",
            *_runs(plan, plan.common),
        ),
        *((("FROM common AS build", *_runs(plan, plan.build)),) if plan.build else ()),
        ("FROM common", *_runs(plan, plan.final)),
        _files(plan),
        _end(plan, labels),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _comment(plan: Plan) -> Iterable[str]:
    name = plan.name
    yield f"# {name}: {to_plain_text(plan.summary)}"
    yield "#"
    yield (
        f"# Written by toolkit from recipes/{name}.toml. Change that file, then: "
        f"toolkit image render {name} --format docker --write"
    )
    yield "# It can be built without toolkit; BuildKit also skips what has not changed:"
    yield "#"
    yield f"#     DOCKER_BUILDKIT=1 docker build -t {name.lower()} -f {name}.Dockerfile ."
    if plan.dropped:
        yield "#"
        yield f"# The base has these steps of the recipe already: {', '.join(plan.dropped)}."


def _runs(plan: Plan, run_steps: Iterable[Step]) -> Iterator[str]:
    for step in run_steps:
        yield ""
        lines = (
            *plan.prelude,
            f"echo {quote_word(f'{STEP}{step.name}: {step.detail}')}",
            *step.lines,
        )
        takes = _TAKES if step.products and plan.build else ""
        yield from _run(lines, f"{takes}{_source_mount(step)}")


def _source_mount(step: Step) -> str:
    if step.source is None:
        return ""
    shown = step.source.shown
    if _NOT_IN_CONTEXT.match(shown):
        raise ConfigError(
            f"Docker cannot copy {shown!r}: only what lies below the recipe's directory, under "
            "other names than Dockerfile and wheels, and without blanks",
            place=f"the step {step.name}",
            next_step="another place or name for it, or the format apptainer",
        )
    return f"--mount=type=bind,source={shown},target={SOURCES}/{step.name} "


def _run(lines: Iterable[str], takes: str = "") -> Iterator[str]:
    r"""Yield the lines of a RUN: a command on each.

    They are joined by ``; \`` where the next is not part of the same compound command.
    """
    shown = [f"RUN {takes}set -ex", *(f"    {_joinable(line)}" for line in lines)]
    last = max(index for index, line in enumerate(shown) if not _is_comment(line))
    for index, line in enumerate(shown):
        if index == last or _is_comment(line):
            yield line
        else:
            yield line + ("" if _OPEN.search(line) else ";") + _NEXT


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _joinable(line: str) -> str:
    """Return a command that can be joined with others.

    One with a comment at its end is put in quotes, since joined lines are one line for the shell.
    """
    return line if _is_comment(line) or " #" not in line else f"eval {quote_word(line)}"


def _files(plan: Plan) -> Iterator[str]:
    yield "# What proves the image stays in it: run it again at any time."
    yield f"RUN set -ex;{_NEXT}"
    yield f"    mkdir -p {CHECKS};{_NEXT}"
    paths = list(plan.files)
    for path, text in plan.files.items():
        yield f"    printf '%s\\n'{_NEXT}"
        yield from (f"        {quote_word(line)}{_NEXT}" for line in text.rstrip("\n").split("\n"))
        yield f"        > {path}" + (f";{_NEXT}" if path != paths[-1] else "")


def _end(plan: Plan, labels: Mapping[str, str]) -> Iterator[str]:
    if plan.path:
        yield f'ENV PATH="{":".join(plan.path)}:$PATH"'
    for name, value in plan.environment.items():
        yield f"ENV {name}={quote_for_docker(escape_expanding(value))}"
    for setting in plan.settings:
        instruction = "ARG" if setting.is_argument else "ENV"
        yield f"{instruction} {setting.name}={quote_for_docker(setting.value)}"
    for name, value in sorted(labels.items()):
        yield f"LABEL {name}={quote_for_docker(escape_expanding(value))}"
    yield "ENTRYPOINT []"
    yield 'CMD ["/bin/sh"]'
