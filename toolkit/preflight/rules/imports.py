"""Rules about the modules that the script imports."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from toolkit.checks import Result, check, from_error
from toolkit.errors import ImportsMissingError, ToolkitError
from toolkit.model.case import Case
from toolkit.model.image import Python
from toolkit.model.source import Import
from toolkit.preflight.packages import explain_standard, find_package, is_known
from toolkit.quoting import shell_words

_SOURCE = "the script was read, not run"
_MOST = 8  # modules that a message names


@check("imports", "modules that the script imports", order=130)
def check_imports(case: Case) -> list[Result]:
    """Check that the ranks have every module that the script imports.

    A job whose imports fail does not queue.
    """
    names = case.source.needed
    if not names:
        return []
    python = case.python
    if python is None or not python.modules:
        return _unknown(case, names)
    there = {*python.modules, *(case.manifest.frameworks if case.manifest else ())}
    missing = [each for each in names if each.name not in there]
    certain = [each for each in missing if each.is_certain]
    return [
        *_certain(case, certain, python),
        *_possible(case, [each for each in missing if not each.is_certain]),
    ]


def _unknown(case: Case, names: Sequence[Import]) -> list[Result]:
    """Warn that nothing was checked although there are modules to check."""
    known = {*sys.stdlib_module_names, *(case.manifest.frameworks if case.manifest else ())}
    unsure = [each.name for each in names if each.is_certain and each.name not in known]
    if not unsure:
        return []
    why = "its modules were never recorded"
    cause = f"it is not known whether the {_noun(case)} has {_listed(unsure)}: {why}"
    name = case.manifest.name if case.manifest and case.host.image else ""
    step = f"toolkit image verify {name} records them" if name else None
    error = ImportsMissingError(cause, place="imports", next_step=step)
    return [from_error(error, _SOURCE, stops=False)]


def _certain(case: Case, missing: Sequence[Import], python: Python) -> list[Result]:
    """Return the findings about imports that every run executes."""
    stops = not case.source.doubt
    own = [each for each in missing if each.elsewhere and "/site-packages" not in each.elsewhere]
    errors = [_own(each) for each in own]
    other = [each for each in missing if each not in own]
    if other:
        errors.append(_lacking(case, other, python))
    source = case.source.doubt or _SOURCE
    return [from_error(error, source, stops=stops) for error in errors]


def _own(missing: Import) -> ToolkitError:
    """Return the error about a module of the user's own that the ranks do not search for."""
    where = f"is in {missing.elsewhere}, which the ranks do not search"
    cause = f"{missing.name} (imported in {missing.file}, line {missing.line}) {where}"
    variable = shell_words([f"PYTHONPATH={missing.elsewhere}"])
    return ImportsMissingError(cause, place="imports", next_step=f"--env {variable}")


def _lacking(case: Case, missing: Sequence[Import], python: Python) -> ToolkitError:
    """Return the error about modules that have to be installed."""
    where = ", ".join(f"{each.name} ({each.file}, line {each.line})" for each in missing[:_MOST])
    more = f" and {len(missing) - _MOST} more" if len(missing) > _MOST else ""
    notes = [note for each in missing if (note := explain_standard(each.name, python.version))]
    hidden = [each for each in missing if each.elsewhere]
    notes += [f"your {each.elsewhere} has {each.name}; the ranks do not see it" for each in hidden]
    named = (find_package(each) for each in missing)
    packages = list(dict.fromkeys(filter(None, named)))
    unsure = [each.name for each in missing if not is_known(each.name)]
    if unsure:
        advice = "--env PYTHONPATH=DIRECTORY says where it is"
        verb = "is" if len(unsure) == 1 else "are"
        notes.append(f"if {_listed(unsure)} {verb} your own code: {advice}")
    cause = f"the {_noun(case)} has no {where}{more}"
    details = (*notes, *(_recipe_step(packages) if packages and _is_sif(case) else ()))
    step = _next(case, packages, python)
    return ImportsMissingError(cause, place="imports", next_step=step, details=details)


def _recipe_step(packages: Iterable[str]) -> tuple[str, ...]:
    import json  # only where something is wrong

    return ("[[steps]]", 'block = "pip"', f"packages = {json.dumps(list(packages))}")


def _next(case: Case, packages: Sequence[str], python: Python) -> str | None:
    """Return the commands that bring packages to where the ranks run."""
    if not packages:
        return None
    if _is_sif(case) and case.manifest:
        recipe = case.manifest.command.rpartition(" ")[2]
        if recipe.endswith(".toml"):
            return f"add the step below to {recipe}, then toolkit image build {recipe}"
        new = f"{case.manifest.name}-more"
        words = [word for package in packages for word in ("--pip", package)]
        made = shell_words(["toolkit", "image", "new", new, "--from", case.manifest.name, *words])
        return f"{made}; toolkit image build {new}.toml; then --image {new}"
    if case.noun == "environment":
        return shell_words([python.path, "-m", "pip", "install", *packages])
    return f"an image with {_listed(packages)}"


def _possible(case: Case, missing: Sequence[Import]) -> list[Result]:
    """Warn of imports that a run may execute."""
    if not missing:
        return []
    where = ", ".join(f"{each.name} ({each.file}, line {each.line})" for each in missing[:_MOST])
    more = f" and {len(missing) - _MOST} more" if len(missing) > _MOST else ""
    cause = f"some runs of the script import what the {_noun(case)} does not have: {where}{more}"
    return [from_error(ImportsMissingError(cause, place="imports"), _SOURCE, stops=False)]


def _is_sif(case: Case) -> bool:
    return case.is_sif


def _noun(case: Case) -> str:
    """Return how messages name what the ranks run in."""
    kind = case.noun
    return f"{kind} {case.manifest.name}" if case.manifest else kind


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST])
    return f"{shown} and {len(names) - _MOST} more" if len(names) > _MOST else shown
