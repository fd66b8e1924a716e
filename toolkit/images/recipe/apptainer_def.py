"""A recipe as a definition for Apptainer and Singularity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from toolkit.images.recipe.bases import Debootstrap
from toolkit.images.recipe.block import CHECKS, WHEELS
from toolkit.images.recipe.plan import STEP, Plan, Step
from toolkit.images.recipe.quoting import quote_expanding, quote_word, to_plain_text

_END = "END-OF-FILE"


def render(plan: Plan, labels: Mapping[str, str]) -> str:
    """Return the text of a definition."""
    sections = ["\n".join(_comment(plan))]
    if plan.build:
        sections += [
            *_head(plan, "build"),
            "%post\n" + "\n".join(_post(plan, plan.repeated)),
        ]
    # The build stage's products are installed by then.
    leave = (f"    rm -rf {WHEELS}",) if plan.build else ()
    sections += [
        *_head(plan, "final" if plan.build else None),
        *((f"%files from build\n    {WHEELS} {WHEELS}",) if plan.build else ()),
        "%post\n" + "\n".join((*_post(plan, plan.steps), *leave, "", *_files(plan))),
        *(f"%{name}\n{text}" for name, text in metadata(plan, labels).items()),
    ]
    return "\n\n".join(sections) + "\n"


def metadata(plan: Plan, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the sections of a definition that Apptainer keeps in the image, by their names."""
    sections = {
        "environment": _environment(plan),
        "labels": (f"{name} {value}" for name, value in sorted(labels.items())),
        "runscript": ('exec "$@"',),
        "test": (f"exec sh {CHECKS}/run",),
    }
    return {name: _indented(lines) for name, lines in sections.items()}


def _head(plan: Plan, stage: str | None) -> Iterator[str]:
    base = plan.base.output()
    yield "\n".join((*base.header, *((f"Stage: {stage}",) if stage else ())))
    if base.setup:
        yield f"%setup\n{_indented(base.setup)}"


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


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
    yield from (f"    {line}" for line in plan.prelude)
    for step in post_steps:
        yield ""
        name = quote_word(f"{STEP}{step.name}: {step.detail}")
        yield from (f"    {line}" for line in (f"echo {name}", *step.lines))


def _files(plan: Plan) -> Iterator[str]:
    """Yield the commands that write files into the image.

    They are here-documents, so that the definition needs no other file.
    """
    yield "    # What proves the image stays in it: run it again at any time."
    yield f"    mkdir -p {CHECKS}"
    for path, text in plan.files.items():
        yield f"    cat > {path} <<'{_END}'"
        yield text.rstrip("\n")
        yield _END


def _environment(plan: Plan) -> Iterator[str]:
    if plan.path:
        yield f"export PATH={':'.join(plan.path)}:$PATH"
    yield from (f"export {name}={quote_word(value)}" for name, value in plan.environment.items())
    for setting in plan.settings:
        export = "" if setting.is_argument else "export "
        yield f"{export}{setting.name}={quote_expanding(setting.value)}"
    arguments = {setting.name for setting in plan.settings if setting.is_argument}
    if arguments := arguments - plan.variables.keys():
        yield f"unset {' '.join(sorted(arguments))}"
