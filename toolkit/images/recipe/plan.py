"""The plan of an image: its base, and its steps in the order in which they run. Pure.

Every renderer and every builder reads the same plan. Compilers do not reach an image: the build
stage compiles, on top of the same first steps as the image itself, and leaves wheels and the like
in ``WHEELS``; the image takes them from there. Nothing else of that stage stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from msgspec.structs import replace

from toolkit.images.recipe.bases import Base, Definition, LocalImage
from toolkit.images.recipe.block import (
    BUILD_PACKAGES,
    IN_BUILD,
    INSTALL,
    VENV,
    WHEELS,
    Ground,
    Setting,
    Source,
)
from toolkit.images.recipe.block import Step as Step
from toolkit.images.recipe.blocks import APART, Pip
from toolkit.images.recipe.digests import hash_bytes, hash_texts
from toolkit.images.recipe.image_checks import check_files, list_checks, list_modules
from toolkit.images.recipe.protection import override, protect, replace_first
from toolkit.images.recipe.quoting import escape_expanding, read_literal, to_plain_text
from toolkit.images.recipe.recipe import Recipe, Space
from toolkit.images.recipe.validation import read_base, read_blocks, require_different_names
from toolkit.model.base import Model

STEP = "==> "  # begins the line in which a step prints its name: "==> pip: torch 2.13.0+cpu"
_CACHE_FORMAT = "2"  # of the cache under the keys: another number makes all entries useless
_VENV_PATH = f"{VENV}/bin"
_DPKG = "/etc/dpkg/dpkg.cfg.d/build"
_CLEAN_APT = ("apt-get clean", "rm -rf /var/lib/apt/lists/*")
# On every core, and so that an import reads no source. Its arguments are files, since compileall
# serves only directories on every core. Tests of packages are left out: a quarter of all files. A
# few templates are not valid in this version of Python; they are never imported. File systems take
# the time from a clock that may be 10 ms behind.
_NOW = "began=$(date +%s.%N); sleep 0.02"
_BYTE_CODE = (
    "# Byte code of what a step adds or changes, so that imports read no source.",
    _NOW,
    f"byte_code() {{ find {VENV}/lib -name '*.py' -newerct \"@$began\" ! -path '*/test/*' "
    "! -path '*/tests/*' -print0 | xargs -0 -r -n 200 -P \"$(nproc)\" "
    f"{VENV}/bin/python3 -m compileall -qq --invalidation-mode unchecked-hash || true; {_NOW}; }}",
)
_LIST_PACKAGES = (
    "{ dpkg-query -W -f '${Package} ${Version}\\n'; pip list --format=freeze || true; }"
)
_LISTED = f"{WHEELS}/packages"  # from the build stage
_KEEP = f">> {BUILD_PACKAGES}"  # what only the build had, for locks


class Plan(Model, frozen=True, kw_only=True):
    """A recipe as steps.

    Attributes:
        name, summary, space, seconds: of the recipe.
        outputs: of the blocks, in the order of the image.
        dropped: steps that the base makes needless, since it holds what they bring: ``openmpi``.
        prelude: the first lines of every step's shell.
        common: the first steps of the image, and of the build stage.
        build: the further steps of the build stage; empty: there is none.
        final: the further steps of the image; the last one cleans up if there is anything to clean.
        files: path -> text of the files that are written into the image last: its checks.
        path: directories put before the image's PATH.
        environment: variables of the image.
        settings: those that are made of others, and what they are made of, set after these.
        base_key: of the base in caches.
    """

    name: str
    summary: str = ""
    base: Base
    outputs: tuple[Step, ...] = ()
    space: Space = Space()
    seconds: dict[str, float] = {}
    dropped: tuple[str, ...] = ()
    prelude: tuple[str, ...] = ()
    common: tuple[Step, ...] = ()
    build: tuple[Step, ...] = ()
    final: tuple[Step, ...] = ()
    files: dict[str, str] = {}
    path: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    settings: tuple[Setting, ...] = ()
    base_key: str = ""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps of the image itself."""
        return (*self.common, *self.final)

    @property
    def keeps_temporary(self) -> bool:
        """Return whether a step may need what an earlier one left in /tmp or /var/tmp."""
        return any(output.is_apart for output in self.outputs)

    @property
    def gpu_code(self) -> tuple[str, ...]:
        """Return the GPU architectures that the image is compiled for; empty: not known."""
        return next((output.gpu_code for output in self.outputs if output.gpu_code), ())

    @property
    def cuda(self) -> str:
        """Return the version of CUDA that the recipe names; empty if it names none."""
        return next((output.cuda for output in self.outputs if output.cuda), "")

    @property
    def brings(self) -> frozenset[str]:
        """Return the Python packages that steps name."""
        return frozenset(name for output in self.outputs for name in output.brings)

    @property
    def products_key(self) -> str:
        """Return the key of what is compiled: against what, and how."""
        return self.build[-1].key if self.build else ""

    @property
    def earlier_products(self) -> tuple[str, ...]:
        """Return the keys of what the same build stage made where it ended earlier.

        The last step lists the packages, by its last line.
        """
        listing = self.build[-1].lines[-1:]
        before = (
            self.common[-1].key if self.common else self.base_key,
            *(step.key for step in self.build),
        )
        ends = (replace(step, lines=(*step.lines, *listing)) for step in self.build[:-1])
        pairs = zip(before, ends, strict=False)
        return tuple(_keyed(self.prelude, (step,), key)[0].key for key, step in pairs)

    @property
    def repeated(self) -> tuple[Step, ...]:
        """Return all steps of the build stage, as Apptainer runs them, under names of their own."""
        steps = (*self.common, *self.build) if self.build else ()
        return tuple(replace(step, name=f"{IN_BUILD}{step.name}") for step in steps)

    @property
    def variables(self) -> dict[str, str]:
        """Return the image's variables; the value of one that is made of others is empty."""
        settings = (setting for setting in self.settings if not setting.is_argument)
        literals = {setting.name: read_literal(setting.value) for setting in settings}
        return {**self.environment, **literals}


def make_plan(
    name: str, recipe: Recipe, scripts: Mapping[str, str], sources: Mapping[str, Source]
) -> Plan:
    """Return the plan of a recipe.

    Args:
        name: of the recipe: the file's name without ``.toml``.
        recipe: merged with those that it extends and its features.
        scripts: the text of every file of ``images/checks``, by name.
        sources: the files that steps copy, by the path in the recipe.

    Raises:
        BadDataError: A value in it is unknown or impossible; gives the key.
    """
    base = read_base(name, recipe)
    outputs, dropped = _outputs(recipe, base, sources)
    in_place = "compilers" in base.output().holds
    compiled = [output for output in outputs if output.build_lines and not in_place]
    first = outputs.index(compiled[0]) if compiled else len(outputs)
    common, later = _image_steps(outputs, first, in_place=in_place)
    path = tuple(dict.fromkeys(directory for output in outputs for directory in output.path))
    environment, settings = _environment(outputs)
    if clean := tuple(_clean(outputs, base)):
        later += (Step(name="clean", detail="what only the build needed", lines=clean),)
    plan = Plan(
        name=name,
        summary=recipe.summary,
        base=base,
        outputs=outputs,
        space=recipe.space or Space(),
        seconds=recipe.seconds,
        dropped=dropped,
        prelude=tuple(_prelude(base, path, outputs)),
        common=common,
        build=tuple(_build_steps(compiled)),
        final=later,
        files=check_files(list_checks(outputs), list_modules(outputs), scripts),
        path=path,
        environment=environment,
        settings=settings,
    )
    require_different_names((*plan.common, *plan.build, *plan.final, *plan.repeated))
    return with_keys(plan)


def _outputs(
    recipe: Recipe, base: Base, sources: Mapping[str, Source]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return what the steps of a recipe give, and the kinds of those that the base has already."""
    read_blocks(recipe.steps)  # an error names a step by its place in the recipe
    steps = replace_first(override(recipe.steps, recipe.overrides))
    blocks = [
        (str(step["block"]), block) for step, block in zip(steps, read_blocks(steps), strict=True)
    ]
    replaced = {name for _, block in blocks if isinstance(block, Pip) for name in block.replaces}
    holds = base.output().holds
    if replaced & {"torch", "tensorflow", "tensorflow-cpu"}:
        holds -= {"horovod"}  # the base's own was built for the framework that is replaced
    lacking = [(kind, block) for kind, block in blocks if not block.is_held(kind, holds)]
    ground = Ground(holds | {kind for kind, _ in lacking if kind == "cuda"}, sources)
    needed = [block.output_on(ground) for _, block in lacking]
    dropped = dict.fromkeys(kind for kind, block in blocks if block.is_held(kind, holds))
    has_python = "python" in holds or isinstance(base, LocalImage | Definition)
    outputs = protect(tuple(_apart(needed)), has_python=has_python)
    return outputs, tuple(dropped)


def _apart(outputs: Iterable[Step]) -> Iterator[Step]:
    """Yield the outputs; those that are apart run in a shell with what earlier steps lead with."""
    leads: list[str] = []
    for output in outputs:
        if any(lead.startswith('cd "/') for lead in output.leads):
            # The directories before it may be gone.
            leads = [lead for lead in leads if not lead.startswith("cd ")]
        if output.is_apart:
            lines = "; ".join((*APART, *leads, *output.lines))
            output = replace(output, lines=(f"( {lines} )",))
        leads += output.leads
        yield output


def _environment(outputs: Iterable[Step]) -> tuple[dict[str, str], tuple[Setting, ...]]:
    """Return the image's variables: literal ones, and from the first that is made of others on."""
    literals: dict[str, str] = {}
    settings: list[Setting] = []
    for output in outputs:
        settings += output.settings
        if settings:
            values = output.environment.items()
            settings += [Setting(name, escape_expanding(value)) for name, value in values]
        else:
            literals |= output.environment
    needed: list[Setting] = []
    for setting in reversed(settings):  # of a build's arguments, those that the image's are made of
        names = (f"${setting.name}", f"${{{setting.name}")
        if not setting.is_argument or any(
            name in later.value for later in needed for name in names
        ):
            needed.append(setting)
    return dict(sorted(literals.items())), tuple(reversed(needed))


def _prelude(base: Base, path: Sequence[str], outputs: Sequence[Step]) -> Iterator[str]:
    yield "umask 022"
    yield "export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive"
    yield (
        "export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 "
        "PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1"
    )
    yield "if [ -f /mnt/pip.conf ]; then export PIP_CONFIG_FILE=/mnt/pip.conf; fi"
    yield "if [ -f /mnt/apt.conf ]; then export APT_CONFIG=/mnt/apt.conf; fi"
    yield (
        "if [ -f /mnt/ca-certificates.crt ]; then export SSL_CERT_FILE=/mnt/ca-certificates.crt; fi"
    )
    yield from base.output().prelude
    if path:
        yield f"export PATH={':'.join(path)}:$PATH"
    if _VENV_PATH in path:
        yield from _BYTE_CODE
    if any(output.is_apart for output in outputs):
        yield "# /tmp is part of the image"


def _image_steps(
    outputs: Sequence[Step], first: int, *, in_place: bool
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Return the steps of the image before and after the build stage.

    Args:
        outputs: of the blocks.
        first: the number of the first that needs the build stage.
        in_place: the base has compilers, so that there is no build stage.
    """
    # Packages of the first steps come together, since starting apt is slow; a later step brings its
    # own, and disturbs none before it.
    together = len(tuple(takewhile(lambda output: output.packages, outputs[:first])))
    common, later = list(_first_apt(outputs[:together])), list[Step]()
    more = Counter[str]()
    has_venv = False
    for number, output in enumerate(outputs):
        has_venv |= _VENV_PATH in output.path
        own_apt = number >= together
        before = _apt_lines(output.packages) if own_apt and output.packages else ()
        lines = _lines(output, in_place=in_place)
        if has_venv and lines:
            lines = (*lines, "byte_code")
        name = output.name
        if before and not lines:
            # What comes later from Debian alone has no name of its own: "apt" is the first step's.
            more[name] += 1
            name += "-more" if more[name] == 1 else f"-more-{more[name]}"
        if before or lines:
            step = Step(
                name=name,
                detail=to_plain_text(output.detail or ", ".join(output.packages)),
                lines=(*before, *lines),
                products=bool(output.build_lines) and own_apt,
                source=output.source,
            )
            (common if number < first else later).append(step)
    return tuple(common), tuple(later)


def _first_apt(outputs: Iterable[Step]) -> Iterator[Step]:
    packages = sorted({package for output in outputs for package in output.packages})
    if packages:
        yield Step(
            name="apt",
            detail=to_plain_text(", ".join(packages)),
            lines=(
                "# Nobody needs half an image after a power cut.",
                f"if [ -d {_DPKG.rpartition('/')[0]} ]; then echo force-unsafe-io > {_DPKG}; fi",
                *_apt_lines(packages),
            ),
        )


def _apt_lines(packages: Iterable[str]) -> tuple[str, ...]:
    return ("apt-get -qq update", f"{INSTALL} {' '.join(sorted(packages))}", *_CLEAN_APT)


def _lines(output: Step, *, in_place: bool) -> tuple[str, ...]:
    """Return the commands of a block in the image itself."""
    if output.build_lines and in_place:
        return (*output.build_lines, *output.lines, f"rm -rf {WHEELS}")
    return (*output.lines, *((f"cat {_LISTED} {_KEEP}",) if output.build_lines else ()))


def _build_steps(outputs: Iterable[Step]) -> Iterator[Step]:
    known = tuple(outputs)
    packages = sorted({package for output in known for package in output.build_packages})
    if packages:
        detail = to_plain_text(", ".join(packages))
        yield Step(name="compilers", detail=detail, lines=_apt_lines(packages))
    for output in known:
        listing = (f"{_LIST_PACKAGES} > {_LISTED}",) if output is known[-1] else ()
        yield Step(
            name=f"{output.name}-build",
            detail=to_plain_text(output.detail),
            lines=(f"mkdir -p {WHEELS}", *output.build_lines, *listing),
        )


def _clean(outputs: Sequence[Step], base: Base) -> Iterator[str]:
    if any(output.packages or output.build_packages for output in outputs):
        yield f"rm -f {_DPKG}"
        yield (
            "rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* "
            "/var/cache/debconf/*-old /var/lib/dpkg/*-old"
        )
        yield "find /var/log -type f -delete"
    yield from base.output().finish


def with_keys(plan: Plan, state: str = "") -> Plan:
    """Return a plan whose steps have the keys of one version of the base.

    Args:
        plan: of the image.
        state: the present version of the base, where its description does not fix it: the digest
            of an image, the time of a file.
    """
    base = plan.base.output()
    base_key = hash_texts(_CACHE_FORMAT, *base.header, *base.setup, state)
    common = _keyed(plan.prelude, plan.common, base_key)
    compiled_on = common[-1].key if common else base_key
    build = _keyed(plan.prelude, plan.build, compiled_on)
    plan = replace(plan, base_key=base_key, common=common, build=build)
    final = _keyed(plan.prelude, plan.final, compiled_on, plan.products_key)
    return replace(plan, final=final)


def _keyed(
    prelude: Iterable[str], steps: Iterable[Step], key: str, products_key: str = ""
) -> tuple[Step, ...]:
    keyed = list[Step]()
    for step in steps:
        script = "\n".join((*prelude, "set -x", *step.lines)) + "\n"
        key = hash_texts(key, script, products_key if step.products else "")
        keyed.append(replace(step, script=script, key=key))
    return tuple(keyed)


def hash_recipe(plan: Plan) -> str:
    """Return a hash that changes when the image would.

    It is that of all steps and files, in whatever format they are written. Manifests and locks
    record it: what is hashed does not change with the fields of our classes.
    """
    import msgspec

    def contents(steps: Iterable[Step]) -> list[dict[str, object]]:
        return [
            {"name": step.name, "detail": step.detail, "lines": step.lines}
            | ({"products": True} if step.products else {})
            for step in steps
        ]

    base = plan.base.output()
    return hash_bytes(
        msgspec.json.encode(
            (
                *(base.header, base.setup, plan.prelude),
                *(contents(steps) for steps in (plan.common, plan.build, plan.final)),
                *(dict(sorted(plan.files.items())), plan.path, plan.environment),
                *((plan.settings,) if plan.settings else ()),
            )
        )
    )
