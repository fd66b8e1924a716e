"""The steps of an image in the order in which they run, for every definition and builder. Pure.

Compilers do not reach an image. The build stage compiles, on top of the same steps as the image
itself, and leaves wheels and the like in ``WHEELS``; the image takes them from there. Nothing else
of that stage stays.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, takewhile

from toolkit.images.recipe.bases import Base
from toolkit.images.recipe.block import CHECKS, WHEELS, BlockOutput, CheckCall, more_suffix
from toolkit.images.recipe.quoting import quote_word, to_plain_text
from toolkit.images.recipe.resolve import Resolved
from toolkit.model.base import Model

_DPKG = "/etc/dpkg/dpkg.cfg.d/build"
_INSTALL = "apt-get -qq -y install --no-install-recommends"
# Variables of Apptainer and of the shell, not of an image.
_RUNTIME = re.compile(
    r"(APPTAINER|SINGULARITY)_|(HOME|PWD|OLDPWD|SHLVL|PROMPT_COMMAND|PS1|TERM|_)$"
)
_CLEAN_APT = ("apt-get clean", "rm -rf /var/lib/apt/lists/*")


class Step(Model, frozen=True, kw_only=True):
    """Some commands that belong together.

    Attributes:
        name: one word.
        detail: what it does, for people.
        lines: for ``sh -e`` as root of the image, in ``/``, every value quoted; each step has a
            shell of its own.
        products: it takes something from ``WHEELS``.
    """

    name: str
    detail: str
    lines: tuple[str, ...]
    products: bool = False


class Stages(Model, frozen=True, kw_only=True):
    """A recipe as steps.

    Attributes:
        prelude: the first lines of every step's shell.
        common: the first steps of the image, and of the build stage.
        build: the further steps of the build stage; empty: there is none.
        final: the further steps of the image; the last one cleans up.
        files: path -> text of the files that are written into the image last: its checks.
        path: directories put before the image's PATH.
        environment: variables of the image.
        expanding: those whose values are made of the base's, set before the others.
        checks: of the image.
        dropped: steps of the recipe that the base makes needless.
        keeps_temporary: a step may need what an earlier one left in /tmp or /var/tmp.
    """

    base: Base
    prelude: tuple[str, ...]
    common: tuple[Step, ...]
    build: tuple[Step, ...]
    final: tuple[Step, ...]
    files: dict[str, str]
    path: tuple[str, ...]
    environment: dict[str, str]
    expanding: dict[str, str] = {}
    checks: tuple[CheckCall, ...]
    dropped: tuple[str, ...] = ()
    keeps_temporary: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps of the image itself."""
        return (*self.common, *self.final)


_FORKED = "forked.py"  # runs the checks of Python
_RUNNER = f"""\
#!/bin/sh
# Proves this image: runs every check and says of each, in one line, how it came out. \
Ends with 1 if one failed.
cd {CHECKS} || exit 1
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
newline='
'
status=0
check() {{
    name=$1
    shift
    if output=$("$@" </dev/null 2>&1); then outcome=passed; else outcome=failed; status=1; fi
    printf '%s\\n' "$output"
    printf 'toolkit-check: %s %s: %s\\n' "$name" "$outcome" "${{output##*"$newline"}}"
}}
"""


def derive_stages(resolved: Resolved, scripts: Mapping[str, str]) -> Stages:
    """Return the steps of a recipe.

    Args:
        resolved: the recipe.
        scripts: the text of every file of ``images/checks``, by name.
    """
    outputs, base = resolved.outputs, resolved.base
    in_place = "compilers" in base.output().holds
    compiled = [
        number for number, output in enumerate(outputs) if output.build_lines and not in_place
    ]
    first = compiled[0] if compiled else len(outputs)
    path = tuple(dict.fromkeys(directory for output in outputs for directory in output.path))
    # Packages of the first steps come together, since starting apt is slow; a later step brings its
    # own, and disturbs none before it.
    together = len(tuple(takewhile(lambda output: output.packages, outputs[:first])))
    more: Counter[str] = Counter()
    common = (
        *_apt(outputs[:together]),
        *(
            step
            for number in range(first)
            for step in _steps(outputs[number], number >= together, in_place, more)
        ),
    )
    later = tuple(
        step for output in outputs[first:] for step in _steps(output, True, in_place, more)
    )
    uses_apt = any(output.packages or output.build_packages for output in outputs)
    calls = _checks(outputs)
    keeps_temporary = any(output.keeps_temporary for output in outputs)
    environment, expanding = _environment(outputs)
    return Stages(
        base=base,
        prelude=(
            *_prelude(base, path),
            *(("# /tmp is part of the image",) if keeps_temporary else ()),
        ),
        common=common,
        build=_build([outputs[number] for number in compiled]),
        final=(
            *later,
            Step(
                name="clean",
                detail="what only the build needed",
                lines=tuple(_clean(resolved, uses_apt=uses_apt)),
            ),
        ),
        files=_files(calls, _modules(outputs), scripts),
        path=path,
        environment=environment,
        expanding=expanding,
        checks=calls,
        dropped=resolved.dropped,
        keeps_temporary=keeps_temporary,
    )


def _environment(outputs: Iterable[BlockOutput]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the image's variables; of two steps that set the same, the later counts."""
    literals: dict[str, str] = {}
    expanding: dict[str, str] = {}
    for output in outputs:
        for name in (*output.environment, *output.expanding):
            literals.pop(name, None)
            expanding.pop(name, None)
        literals |= output.environment
        expanding |= output.expanding
    return dict(sorted(literals.items())), expanding


def _prelude(base: Base, path: tuple[str, ...]) -> tuple[str, ...]:
    return (
        "umask 022",
        "export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive",
        "export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 "
        "PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1",
        "if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi",
        "if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi",
        "if [ -f /mnt/ca-certificates.crt ]; "
        "then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi",
        *base.output().prelude,
        *((f"export PATH={':'.join(path)}:$PATH",) if path else ()),
    )


def _apt(outputs: Iterable[BlockOutput]) -> Iterator[Step]:
    """Yield the step that installs the Debian packages of the first steps."""
    packages = sorted({package for output in outputs for package in output.packages})
    directory = _DPKG.rpartition("/")[0]
    if packages:
        yield Step(
            name="apt",
            detail=to_plain_text(", ".join(packages)),
            lines=(
                "# Nobody needs half an image after a power cut.",
                f"if [ -d {directory} ]; then echo force-unsafe-io > {_DPKG}; fi",
                *_apt_lines(packages),
            ),
        )


def _apt_lines(packages: Iterable[str]) -> tuple[str, ...]:
    return ("apt-get -qq update", f"{_INSTALL} {' '.join(packages)}", *_CLEAN_APT)


def _steps(
    output: BlockOutput, own_apt: bool, in_place: bool, more: Counter[str]
) -> Iterator[Step]:
    """Yield the step of a block's output in the image itself.

    Args:
        output: of the block.
        own_apt: its Debian packages are not installed by the first step.
        in_place: the base has compilers.
        more: counts the steps that add nothing but Debian packages, by name of the block.
    """
    before = _apt_lines(sorted(output.packages)) if own_apt and output.packages else ()
    lines = output.lines
    if output.build_packages and not output.build_lines:
        # They come for this step only. What comes with them is marked as automatic, and goes with
        # them.
        packages = " ".join(sorted(output.build_packages))
        only = (
            "-o APT::AutoRemove::RecommendsImportant=false "
            "-o APT::AutoRemove::SuggestsImportant=false"
        )
        lines = (
            *_apt_lines(sorted(output.build_packages)),
            *lines,
            f"apt-get -qq -y autoremove --purge {only} {packages}",
        )
    if output.build_lines and in_place:  # the base has compilers: there is no build stage
        lines = (*output.build_lines, *lines, f"rm -rf {WHEELS}")
    if before or lines:
        # What comes later from Debian alone has no name of its own, and "apt" is the first step's.
        name = output.name
        if not lines:
            more[name] += 1
            name += more_suffix(more[name])
        yield Step(
            name=name,
            detail=to_plain_text(output.detail or ", ".join(output.packages)),
            lines=(*before, *lines),
            products=bool(output.build_lines) and own_apt,
        )


def _build(outputs: Iterable[BlockOutput]) -> tuple[Step, ...]:
    """Return the steps of the build stage beyond the common ones."""
    known = tuple(outputs)
    packages = sorted({package for output in known for package in output.build_packages})
    apt = (
        (
            Step(
                name="compilers",
                detail=to_plain_text(", ".join(packages)),
                lines=_apt_lines(packages),
            ),
        )
        if packages
        else ()
    )
    return (
        *apt,
        *(
            Step(
                name=f"{output.name}-build",
                detail=to_plain_text(output.detail),
                lines=(f"mkdir -p {WHEELS}", *output.build_lines),
            )
            for output in known
        ),
    )


def _clean(resolved: Resolved, *, uses_apt: bool) -> Iterator[str]:
    for output in resolved.outputs:
        yield from output.finish
    if uses_apt:
        yield f"rm -f {_DPKG}"
        yield (
            "rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* "
            "/var/cache/debconf/*-old /var/lib/dpkg/*-old"
        )
        yield "find /var/log -type f -delete"
    yield from resolved.base.output().finish


def _modules(outputs: Iterable[BlockOutput]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(output.imports for output in outputs)))


def _checks(outputs: Iterable[BlockOutput]) -> tuple[CheckCall, ...]:
    """Return the checks of the image: one for all imports, then those of the steps."""
    known = tuple(outputs)
    modules = _modules(known)
    packages = tuple(dict.fromkeys(chain.from_iterable(output.installed for output in known)))
    arguments = (*modules, *(("--of", *packages) if packages else ()))
    imports = CheckCall(
        name="imports",
        command=f"imports.py {' '.join(map(quote_word, arguments))}",
        scripts=("imports.py",),
        is_python=True,
    )
    return (
        *((imports,) if arguments else ()),
        *chain.from_iterable(output.checks for output in known),
    )


def _files(
    calls: tuple[CheckCall, ...], modules: Iterable[str], scripts: Mapping[str, str]
) -> dict[str, str]:
    names = {script for call in calls for script in call.scripts}
    names |= {_FORKED for call in calls if call.is_python}
    return {
        **{f"{CHECKS}/{name}": scripts[name] for name in sorted(names)},
        f"{CHECKS}/run": runner(calls, modules),
    }


def runner(calls: Iterable[CheckCall], modules: Iterable[str], directory: str = CHECKS) -> str:
    """Return the script that runs checks in an image, and prints the result of each.

    Args:
        calls: the checks.
        modules: those that checks of Python find imported.
        directory: where the image has the scripts.
    """
    known = tuple(calls)
    forked = [quote_word(f"{call.name} {call.command}") for call in known if call.is_python]
    words = " ".join(("python3", _FORKED, quote_word(" ".join(modules)), *forked))
    lines = [f"{words} </dev/null || status=1"] if forked else []
    lines += [f"check {call.name} {call.command}" for call in known if not call.is_python]
    text = "".join(f"{line}\n" for line in lines)
    return f"{_RUNNER.replace(CHECKS, directory)}{text}exit $status\n"


def promised_variables(stages: Stages, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an image must have.

    The values matter only of those that are lists of directories.

    Args:
        stages: of the image.
        base: the variables of its base; a recipe may replace them.
    """
    own = dict.fromkeys(stages.expanding, "") | stages.environment
    of_base = {name: value for name, value in base.items() if not _RUNTIME.match(name)}
    promised = {**of_base, **own}
    if "PATH" not in own:
        promised["PATH"] = ":".join(filter(None, (*stages.path, base.get("PATH"))))
    return promised


def list_missing(promised: Mapping[str, str], variables: Mapping[str, str]) -> list[str]:
    """Return what an image lacks of the variables that were promised, for people."""
    missing = [f"the variable {name} is not set" for name in promised if name not in variables]
    for name in (name for name in promised if name.endswith("PATH") and name in variables):
        parts = variables[name].split(":")
        lost = [part for part in promised[name].split(":") if part and part not in parts]
        missing += [f"{name} lacks {part}" for part in lost]
    return missing
