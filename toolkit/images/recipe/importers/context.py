"""The files of a Dockerfile's COPY, which are put beside the recipe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from toolkit.files import read_text
from toolkit.images.recipe.sources import list_entries


class Context:
    """The directory that a Dockerfile's sources are relative to."""

    def __init__(self, directory: Path, target: Path) -> None:
        """Take the directory, and the one that files are copied to, which may lie in it."""
        self.directory, self.target = directory.resolve(), target.resolve()

    def list_sources(self, pattern: str) -> list[Path]:
        """Return the files and directories that a source of COPY names, sorted.

        Raises:
            ValueError: There is none, or it lies outside the context.
        """
        relative = os.path.normpath(pattern.lstrip("/") or ".")
        if relative.startswith(".."):
            raise ValueError(f"{pattern} lies outside the directory of the Dockerfile")
        has_wildcard = any(character in relative for character in "*?[")
        paths = self.directory.glob(relative) if has_wildcard else [self.directory / relative]
        sources = sorted(path for path in paths if os.path.lexists(path) and self._is_sent(path))
        if not sources:
            raise ValueError(
                f"there is no {pattern} in {self.directory}: "
                "put the Dockerfile at the top of its context"
            )
        return sources

    def copy(self, sources: Sequence[Path], name: str) -> list[Path]:
        """Copy sources as COPY does, of a directory its contents; return the paths of the copies.

        Args:
            sources: as ``list_sources`` returns them.
            name: of a new directory for them, which is not made if there is nothing to copy.

        Raises:
            ValueError: One cannot be read, or leads out of the context.
            ConfigError: One is of a kind that no image holds.
        """
        target = self.target / name
        try:
            for source in sources:
                # A link that COPY names is followed; of a circle, resolve() raises no OSError.
                real = Path(os.path.realpath(source, strict=True))
                if not real.is_relative_to(self.directory):
                    raise ValueError(f"{source} leads out of the directory of the Dockerfile")
                list(list_entries(real))  # refuses what no image holds
                if real.is_dir():
                    shutil.copytree(
                        real, target, symlinks=True, ignore=self._ignored, dirs_exist_ok=True
                    )
                    target.chmod(0o755)  # the next one is copied there, too
                else:
                    target.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(real, target / source.name)
            return sorted(target.iterdir())
        except OSError as error:  # of a directory: a list of what failed
            reason = error.strerror or error.args[0][0][-1]
            raise ValueError(f"the files to copy cannot be read: {reason}") from None

    @cached_property
    def _sent(self) -> set[str]:
        """The paths that Docker takes by ``.dockerignore``, and the directories above them."""
        from docker.utils.build import PatternMatcher

        lines = read_text(self.directory / ".dockerignore", errors="replace").splitlines()
        matcher = PatternMatcher([line for line in lines if not line.startswith("#")])
        matcher.patterns.pop()  # by which the file itself is sent to an engine in any case
        sent = set(matcher.walk(str(self.directory)))
        return {"."}.union(sent, *(map(str, Path(path).parents) for path in sent))

    def _is_sent(self, path: Path) -> bool:
        is_all = not (self.directory / ".dockerignore").is_file()
        return is_all or os.path.relpath(path, self.directory) in self._sent

    def _ignored(self, directory: str, names: list[str]) -> list[str]:
        paths = [Path(directory, name) for name in names]
        return [path.name for path in paths if path == self.target or not self._is_sent(path)]
