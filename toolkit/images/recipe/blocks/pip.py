"""Packages of Python, from the index of the host's pip or one that the recipe names."""

from __future__ import annotations

from toolkit.images.recipe.block import (
    Block,
    BlockOutput,
    format_requirement,
    require_requirements,
    require_step_names,
)
from toolkit.images.recipe.names import normalize_name
from toolkit.images.recipe.protection import parse_names
from toolkit.images.recipe.quoting import quote_word, quote_words


class Pip(Block, frozen=True, kw_only=True):
    """``block = "pip"``. Needs ``python`` before it.

    Attributes:
        packages: requirements as pip reads them.
        imports: modules that a script can import afterwards; the image's checks import them and
            record their versions. Where it is left out, they are those that the packages bring; an
            empty list is for packages that bring none.
        replaces: distributions among ``packages`` that take the place of those of the base:
            ``["torch"]``. Steps that build on these build again.
        brings: a part that a base may hold already, so that the step is not needed there:
            ``torch``.
        no_deps: install no dependencies of the packages.
        index: a further index, asked only where those in pip's configuration do not have the
            packages.
        name: of the step.
    """

    packages: tuple[str, ...]
    imports: tuple[str, ...] | None = None
    replaces: tuple[str, ...] = ()
    brings: str | None = None
    no_deps: bool = False
    index: str | None = None
    name: str = "pip"

    def __post_init__(self) -> None:
        require_requirements(self.packages)
        require_step_names(self.name)
        brought = parse_names(self.packages)
        for name in self.replaces:
            if normalize_name(name) not in brought:
                raise ValueError(
                    f"{name!r} is replaced by nothing: packages must name it, with its new version"
                )

    def is_held(self, kind: str, holds: frozenset[str]) -> bool:
        """Return whether the base has what the step brings and nothing is to be replaced."""
        del kind
        return self.brings is not None and self.brings in holds and not self.replaces

    def output(self) -> BlockOutput:
        """Return what the definition gets from this step."""
        options = "--no-compile --no-deps" if self.no_deps else "--no-compile"
        install = f"pip install {options} {quote_words(self.packages)}"
        if self.index is not None:
            source = f"--extra-index-url {quote_word(self.index)}"
            install += f" || pip install {options} {source} {quote_words(self.packages)}"
        names = parse_names(self.packages)
        return BlockOutput(
            name=self.name,
            detail=", ".join(map(format_requirement, self.packages)),
            lines=(install,),
            imports=self.imports or (),
            # One with a condition may not be installed at all.
            installed=parse_names(
                requirement for requirement in self.packages if ";" not in requirement
            )
            if self.imports is None
            else (),
            brings=names,
            requirements=self.packages,
            replaces=tuple(map(normalize_name, self.replaces)),
        )
