"""A recipe as a definition for Apptainer and Singularity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from toolkit.images.recipe.bases import Debootstrap
from toolkit.images.recipe.block import CHECKS, IN_BUILD, WHEELS
from toolkit.images.recipe.definitions import STEP
from toolkit.images.recipe.quoting import format_exports, quote_word, to_plain_text
from toolkit.images.recipe.resolve import Resolved
from toolkit.images.recipe.stages import Stages, Step

_END = "END-OF-FILE"


def render(resolved: Resolved, stages: Stages, labels: Mapping[str, str]) -> str:
    """Return the text of a definition."""
    sections = ["\n".join(_comment(resolved, stages))]
    if stages.build:
        sections += [
            *_head(stages, "build"),
            "%post\n" + "\n".join(_post(stages, list_build_steps(stages))),
        ]
    sections += [
        *_head(stages, "final" if stages.build else None),
        *((f"%files from build\n    {WHEELS} {WHEELS}",) if stages.build else ()),
        "%post\n" + "\n".join((*_post(stages, stages.steps), *_leave(stages), "", *_files(stages))),
        _section("environment", _environment(stages)),
        _section("labels", (f"{name} {value}" for name, value in sorted(labels.items()))),
        _section("runscript", ('exec "$@"',)),
        _section("test", (f"exec sh {CHECKS}/run",)),
    ]
    return "\n\n".join(sections) + "\n"


def list_build_steps(stages: Stages) -> tuple[Step, ...]:
    """Return the steps of the build stage under names of their own."""
    from msgspec.structs import replace

    if not stages.build:
        return ()
    return tuple(
        replace(step, name=f"{IN_BUILD}{step.name}") for step in (*stages.common, *stages.build)
    )


def list_steps(stages: Stages) -> tuple[tuple[str, str], ...]:
    """Return the name and detail of every step in the order in which Apptainer runs them.

    A build reports them as it goes.
    """
    return tuple((step.name, step.detail) for step in (*list_build_steps(stages), *stages.steps))


def _head(stages: Stages, stage: str | None) -> Iterator[str]:
    base = stages.base.output()
    yield "\n".join((*base.header, *((f"Stage: {stage}",) if stage else ())))
    if base.setup:
        yield _section("setup", base.setup)


def _section(name: str, lines: Iterable[str]) -> str:
    return f"%{name}\n" + "\n".join(f"    {line}" for line in lines)


def _comment(resolved: Resolved, stages: Stages) -> Iterator[str]:
    name = resolved.name
    argument = (
        "--build-arg mirror=URL-OF-A-DEBIAN-MIRROR "
        if isinstance(resolved.base, Debootstrap)
        else ""
    )
    yield f"# {name}: {to_plain_text(resolved.summary)}"
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
    if stages.dropped:
        yield "#"
        yield f"# The base has these steps of the recipe already: {', '.join(stages.dropped)}."


def _post(stages: Stages, post_steps: Iterable[Step]) -> Iterator[str]:
    yield from _indented(*stages.prelude)
    for step in post_steps:
        yield ""
        yield from _indented(f"echo {quote_word(f'{STEP}{step.name}: {step.detail}')}", *step.lines)


def _leave(stages: Stages) -> Iterator[str]:
    """Return the command that removes the build stage's products, which are installed by now."""
    return _indented(f"rm -rf {WHEELS}") if stages.build else iter(())


def _indented(*lines: str) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _files(stages: Stages) -> Iterator[str]:
    """Yield the commands that write files into the image.

    They are here-documents, so that the definition needs no other file.
    """
    yield from _indented(
        "# What proves the image stays in it: run it again at any time.", f"mkdir -p {CHECKS}"
    )
    for path, text in stages.files.items():
        yield f"    cat > {path} <<'{_END}'"
        yield text.rstrip("\n")
        yield _END


def _environment(stages: Stages) -> Iterator[str]:
    if stages.path:
        yield f"export PATH={':'.join(stages.path)}:$PATH"
    yield from (
        f"export {setting}" for setting in format_exports(stages.environment, stages.expanding)
    )
