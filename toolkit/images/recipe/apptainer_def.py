"""A recipe as a definition for Apptainer and Singularity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from toolkit.images.recipe.bases import Debootstrap
from toolkit.images.recipe.block import CHECKS, WHEELS
from toolkit.images.recipe.plan import STEP, Plan, Step
from toolkit.images.recipe.quoting import format_exports, quote_word, to_plain_text

_END = "END-OF-FILE"


def render(plan: Plan, labels: Mapping[str, str]) -> str:
    """Return the text of a definition."""
    sections = ["\n".join(_comment(plan))]
    if plan.build:
        sections += [
            *_head(plan, "build"),
            "%post\n" + "\n".join(_post(plan, plan.repeated)),
        ]
    sections += [
        *_head(plan, "final" if plan.build else None),
        *((f"%files from build\n    {WHEELS} {WHEELS}",) if plan.build else ()),
        "%post\n" + "\n".join((*_post(plan, plan.steps), *_leave(plan), "", *_files(plan))),
        _section("environment", _environment(plan)),
        _section("labels", (f"{name} {value}" for name, value in sorted(labels.items()))),
        _section("runscript", ('exec "$@"',)),
        _section("test", (f"exec sh {CHECKS}/run",)),
    ]
    return "\n\n".join(sections) + "\n"


def _head(plan: Plan, stage: str | None) -> Iterator[str]:
    base = plan.base.output()
    yield "\n".join((*base.header, *((f"Stage: {stage}",) if stage else ())))
    if base.setup:
        yield _section("setup", base.setup)


def _section(name: str, lines: Iterable[str]) -> str:
    return f"%{name}\n" + "\n".join(f"    {line}" for line in lines)


def _comment(plan: Plan) -> Iterator[str]:
    name = plan.name
    argument = (
        "--build-arg mirror=URL-OF-A-DEBIAN-MIRROR " if isinstance(plan.base, Debootstrap) else ""
    )
    yield f"# {name}: {to_plain_text(plan.summary)}"
    yield "#"
    yield (
        f"# Written by toolkit from recipes/{name}.toml. Change that file, then: "
        f"toolkit image render {name} --write"
    )
    yield "# It can be built without toolkit, by root, or by a user with --fakeroot:"
    yield "#"
    yield f"#     apptainer build {argument}{name}.sif {name}.def"
    yield "#"
    yield (
        "# A build may read what the building machine knows from files bound to /mnt: "
        "pip.conf, apt.conf, ca-certificates.crt."
    )
    yield "# Nothing has to be there, and nothing of it stays in the image."
    if plan.dropped:
        yield "#"
        yield f"# The base has these steps of the recipe already: {', '.join(plan.dropped)}."


def _post(plan: Plan, post_steps: Iterable[Step]) -> Iterator[str]:
    yield from _indented(*plan.prelude)
    for step in post_steps:
        yield ""
        yield from _indented(f"echo {quote_word(f'{STEP}{step.name}: {step.detail}')}", *step.lines)


def _leave(plan: Plan) -> Iterator[str]:
    """Return the command that removes the build stage's products, which are installed by now."""
    return _indented(f"rm -rf {WHEELS}") if plan.build else iter(())


def _indented(*lines: str) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _files(plan: Plan) -> Iterator[str]:
    """Yield the commands that write files into the image.

    They are here-documents, so that the definition needs no other file.
    """
    yield from _indented(
        "# What proves the image stays in it: run it again at any time.", f"mkdir -p {CHECKS}"
    )
    for path, text in plan.files.items():
        yield f"    cat > {path} <<'{_END}'"
        yield text.rstrip("\n")
        yield _END


def _environment(plan: Plan) -> Iterator[str]:
    if plan.path:
        yield f"export PATH={':'.join(plan.path)}:$PATH"
    yield from (f"export {setting}" for setting in format_exports(plan.environment, plan.expanding))
