"""The rule about the modules that the script imports: a job whose imports fail does not queue."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from toolkit.checks import Rule
from toolkit.errors import ImportsMissingError, ToolkitError
from toolkit.model.case import Case
from toolkit.model.image import Python
from toolkit.model.source import Import
from toolkit.quoting import shell_words
from toolkit.rules.packages import explain_standard, find_package, is_known

_SOURCE = "the script was read, not run"
_MOST = 8  # modules that a message names


def imports(case: Case) -> Iterator[ToolkitError]:
    """Require every module that each run of the script imports, and warn of the others."""
    needed, python = case.source.needed, case.python
    there = {*(case.manifest.frameworks if case.manifest else ())}
    if python is None or not python.modules:
        yield from _unknown(case, {*there, *sys.stdlib_module_names})
        return
    there |= {*python.modules}
    missing = [each for each in needed if each.name not in there]
    certain = [each for each in missing if each.is_certain]
    own = [each for each in certain if each.elsewhere and "/site-packages" not in each.elsewhere]
    for each in own:
        variable = shell_words([f"PYTHONPATH={each.elsewhere}"])
        yield _finding(
            case,
            f"{each.name} (imported in {each.file}, line {each.line}) is in {each.elsewhere}, "
            "which the ranks do not search",
            f"--env {variable}",
        )
    if lacking := [each for each in certain if each not in own]:
        yield _lacking(case, lacking, python)
    if possible := [each for each in missing if not each.is_certain]:
        yield ImportsMissingError(
            f"some runs of the script import what the {_noun(case)} does not have: "
            f"{_listed([_placed(each) for each in possible])}",
            place="imports",
            source=_SOURCE,
            is_warning=True,
        )


def _finding(case: Case, cause: str, step: str | None, details: Sequence[str] = ()) -> ToolkitError:
    """Return the finding about an import that every run executes; a warning if there is doubt."""
    doubt = case.source.doubt
    return ImportsMissingError(
        cause,
        place="imports",
        next_step=step,
        details=details,
        source=doubt or _SOURCE,
        is_warning=bool(doubt),
    )


def _unknown(case: Case, there: set[str]) -> Iterator[ToolkitError]:
    """Warn that nothing was checked although there are modules to check."""
    needed = case.source.needed
    unsure = [each.name for each in needed if each.is_certain and each.name not in there]
    name = case.manifest.name if case.manifest and case.host.image else ""
    if unsure:
        yield ImportsMissingError(
            f"it is not known whether the {_noun(case)} has {_listed(unsure)}: "
            "its modules were never recorded",
            place="imports",
            next_step=f"toolkit image verify {name} records them" if name else None,
            source=_SOURCE,
            is_warning=True,
        )


def _lacking(case: Case, missing: Sequence[Import], python: Python) -> ToolkitError:
    """Return the finding about modules that have to be installed."""
    notes = [note for each in missing if (note := explain_standard(each.name, python.version))]
    notes += [
        f"your {each.elsewhere} has {each.name}; the ranks do not see it"
        for each in missing
        if each.elsewhere
    ]
    if unsure := [each.name for each in missing if not is_known(each.name)]:
        verb = "is" if len(unsure) == 1 else "are"
        advice = "--env PYTHONPATH=DIRECTORY says where it is"
        notes.append(f"if {_listed(unsure)} {verb} your own code: {advice}")
    packages = list(dict.fromkeys(filter(None, map(find_package, missing))))
    if packages and case.is_sif:
        notes += ["[[steps]]", 'block = "pip"', f"packages = {json.dumps(packages)}"]
    where = _listed([_placed(each) for each in missing])
    step = _installation(case, packages, python) if packages else None
    return _finding(case, f"the {_noun(case)} has no {where}", step, notes)


def _installation(case: Case, packages: Sequence[str], python: Python) -> str:
    """Return the commands that bring packages to where the ranks run."""
    if case.noun == "environment":
        return shell_words([python.path, "-m", "pip", "install", *packages])
    if not case.is_sif or case.manifest is None:
        return f"an image with {_listed(packages)}"
    name, recipe = case.manifest.name, case.manifest.command.rpartition(" ")[2]
    if recipe.endswith(".toml"):
        return f"add the step below to {recipe}, then toolkit image build {recipe}"
    words = [word for package in packages for word in ("--pip", package)]
    made = shell_words(["toolkit", "image", "new", f"{name}-more", "--from", name, *words])
    return f"{made}; toolkit image build {name}-more.toml; then --image {name}-more"


def _noun(case: Case) -> str:
    """Return how messages name what the ranks run in."""
    return f"{case.noun} {case.manifest.name}" if case.manifest else case.noun


def _placed(needed: Import) -> str:
    return f"{needed.name} ({needed.file}, line {needed.line})"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST])
    return f"{shown} and {len(names) - _MOST} more" if len(names) > _MOST else shown


RULES = (Rule("imports", "modules that the script imports", imports),)
