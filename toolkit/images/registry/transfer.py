"""Images from one place to another: to and from a registry (``oras://``), and into a site's directory of images.

A SIF does not travel alone. What is known of it (manifest, bill of materials) goes along: to a
registry as a small SIF of its own under the tag with ``-toolkit`` behind it, which holds nothing
but that text; to a directory as files beside it. Nothing appears under an image's name before it is
whole and is what it was.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from toolkit import shell
from toolkit.errors import (
    BuildError,
    CommandFailedError,
    ForbiddenError,
    ImageMissingError,
    MalformedInputError,
    NoSpaceError,
    ToolkitError,
    UsageError,
)
from toolkit.files import hash_file, write_atomically
from toolkit.images.recipe.names import image_name
from toolkit.images.registry import foreign
from toolkit.images.registry.auth import credentials
from toolkit.images.registry.references import Reference, is_loopback, parse
from toolkit.images.registry.source import Source, source
from toolkit.images.sif import header as sif
from toolkit.images.store import store
from toolkit.images.store.prune import FAILED_LOG, files_of
from toolkit.images.store.sbom import ENDING
from toolkit.images.store.sif_files import read_text_object
from toolkit.images.store.store import FoundImage
from toolkit.model.base import from_json
from toolkit.model.image import Manifest
from toolkit.progress import Progress
from toolkit.quoting import shell as quoted
from toolkit.units import human_size

_BESIDE = "-toolkit"  # ends the tag under which the text about an image is kept
_GENERIC = "6"  # a SIF's data object of no kind that Apptainer knows
_PATIENCE = 6 * 3600.0


def push(image: FoundImage, target: str, progress: Progress) -> Reference:
    """Put an image and what is known of it into a registry.

    Raises:
        UsageError: the target is no ``oras://registry/path:tag``.
        CommandFailedError: the registry refused it.
    """
    place = _place(target)
    with _private() as directory:
        environment = _environment(place, directory)
        progress.begin("push", f"{image.name}, {human_size(Path(image.path).stat().st_size)}")
        _apptainer(
            ["push", *_plain(place), image.path, f"oras://{place.pinned}"], environment, place
        )
        progress.end()
        bundle = _bundle(image)
        if bundle:
            progress.begin("push", "what is known of it")
            small = directory / "about.sif"
            text = directory / "about.json"
            text.write_text(json.dumps(bundle), encoding="utf-8")
            _apptainer(["sif", "new", str(small)], environment, place)
            _apptainer(
                ["sif", "add", "--datatype", _GENERIC, "--groupid", "1", str(small), str(text)],
                environment,
                place,
            )
            _apptainer(
                ["push", "-U", *_plain(place), str(small), f"oras://{place.pinned}{_BESIDE}"],
                environment,
                place,
            )
            progress.end()
    return place


def pull(origin: str, name: str | None, progress: Progress, *, force: bool = False) -> Path:
    """Bring an image from a registry into the user's own directory; the path of the SIF.

    Args:
        origin: ``oras://...``, as ``push`` wrote it, or ``docker://...``: a foreign image, converted once, before any job runs it.
        name: that it gets; None: that of its manifest, else of the repository.
        force: replace an image of that name.

    Raises:
        UsageError: the origin is none of these, or the name is taken or cannot be one.
        CommandFailedError: the registry does not give it.
        BuildError: what came is not what its manifest describes.
        MalformedInputError: what came is broken, or wants a name that is a path.
    """
    if name is not None:
        image_name(name, "--name", error=UsageError)
    scheme, separator, reference = origin.partition("://")
    if not separator or scheme not in ("oras", "docker"):
        raise UsageError(
            f"{origin!r} is no place to pull from",
            place="FROM",
            next_step="oras://registry/path:tag, or docker://registry/path:tag",
        )
    wanted = _reference(reference)
    place = _now(wanted) if scheme == "docker" else wanted
    directory = store.images_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with _private(directory) as scratch:
        environment = _environment(place, scratch)
        sif = scratch / "image.sif"
        progress.begin("pull", str(wanted))
        plain = (
            _plain(place)
            if scheme == "oras"
            else [*(("--no-https",) if is_loopback(place.registry) else ())]
        )
        _apptainer(
            ["pull", *plain, str(sif), f"{scheme}://{place.pinned}"],
            environment,
            place,
            directory=directory,
        )
        progress.end()
        manifest, beside = (None, {}) if scheme == "docker" else _about(place, scratch, environment)
        origin = f"{scheme}://{wanted}"
        header = store.whole_header(sif)
        if manifest and (manifest.sif_id, manifest.size) != (header.sif_id, sif.stat().st_size):
            raise BuildError(
                f"{place} is not what its manifest describes: somebody pushed another image under this tag",
                place=str(place),
                next_step="push it again from where it was built, or pull it by docker:// as a foreign image",
            )
        chosen = name or (manifest.name if manifest else wanted.path.rsplit("/", 1)[-1])
        image_name(chosen, str(place))
        if manifest is None:
            progress.begin("look", "what is in it")
            manifest = foreign.describe(sif, origin, place.digest)
            progress.end()
        manifest = msgspec.structs.replace(manifest, origin=origin)
        return _appear(sif, chosen, manifest, beside, directory, force=force)


def _now(wanted: Reference) -> Reference:
    """Return where an image is fetched from, with the digest that its tag has now."""
    found = source(str(wanted), written="FROM")
    return found.place


def _appear(
    sif: Path,
    name: str,
    manifest: Manifest,
    beside: dict[str, str],
    directory: Path,
    *,
    force: bool,
) -> Path:
    target = directory / f"{name}.sif"
    if target.exists() and not force:
        raise UsageError(
            f"there is an image {name} already",
            place="--name",
            next_step="--force replaces it; --name gives the new one another name",
        )
    sif.chmod(0o755)
    store.publish(sif, msgspec.structs.replace(manifest, name=name), directory)
    bill = target.with_name(f"{name}{ENDING}")
    if ENDING in beside:
        write_atomically(bill, beside[ENDING])
    else:
        bill.unlink(missing_ok=True)
    return target


def _place(target: str) -> Reference:
    if not target.startswith("oras://"):
        raise UsageError(
            f"{target!r} is no place to push to", place="TO", next_step="oras://registry/path:tag"
        )
    return _reference(target.removeprefix("oras://"))


def _reference(text: str) -> Reference:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(str(error), place="reference", next_step="registry/path:tag") from None


def _plain(place: Reference) -> list[str]:
    return ["--no-https"] if is_loopback(place.registry) else []


def _bundle(image: FoundImage) -> dict[str, str]:
    """Ending -> text of the files that go along."""
    path = Path(image.path)
    if image.manifest is None:
        return {}
    stem = path.name.removesuffix(".sif")
    texts = (
        one for one in files_of(path) if one.suffix == ".json" and not one.name.startswith(".")
    )
    return {one.name.removeprefix(stem): one.read_text(encoding="utf-8") for one in texts}


def _about(
    place: Reference, scratch: Path, environment: dict[str, str]
) -> tuple[Manifest | None, dict[str, str]]:
    """Return what was pushed beside an image; nothing where another program pushed it."""
    small = scratch / "about.sif"
    got = shell.run(
        [
            shell.require_apptainer(),
            "pull",
            *_plain(place),
            str(small),
            f"oras://{place.pinned}{_BESIDE}",
        ],
        env=environment,
        check=False,
        timeout=_PATIENCE,
    )
    if not got.ok:
        return None, {}
    try:
        # The data object that ``push`` adds is of the kind that SIFs have for their labels.
        bundle = msgspec.json.decode(read_text_object(small, sif.find_labels), type=dict[str, str])
        return from_json(bundle.pop(".json", ""), Manifest), bundle
    except (ValueError, RecursionError) as error:
        reason = f"what is kept beside {place} cannot be read: {error}"
        raise MalformedInputError(reason, place=f"{place}{_BESIDE}") from None


def _apptainer(
    words: list[str],
    environment: dict[str, str],
    place: Reference,
    *,
    directory: Path | None = None,
) -> None:
    done = shell.run(
        [shell.require_apptainer(), *words], env=environment, check=False, timeout=_PATIENCE
    )
    if done.ok:
        return
    said = "\n".join(done.tail())
    if "no space left" in said.lower():
        raise NoSpaceError(
            f"a disk was full while {words[0]} worked",
            place=str(directory or place),
            details=done.tail(),
        )
    if "unauthorized" in said.lower() or "denied" in said.lower() or "401" in said:
        step = f"apptainer registry login --username NAME oras://{place.registry}, or docker login {place.registry}"
        raise CommandFailedError(
            f"the registry {place.registry} wants a login",
            place=str(place),
            details=done.tail(),
            next_step=step,
        )
    raise CommandFailedError(
        f"apptainer {words[0]} failed for {place}", place=str(place), details=done.tail()
    )


def _environment(place: Reference, directory: Path) -> dict[str, str]:
    """For Apptainer: its caches in a directory that goes, the login in the environment, as Docker's or Apptainer's configuration has it."""
    login = credentials(place.registry)
    known = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")
        if name in os.environ
    }
    places = {
        f"{tool}_{what}": str(directory / what.lower())
        for tool in ("APPTAINER", "SINGULARITY")
        for what in ("CACHEDIR", "TMPDIR")
    }
    for path in set(places.values()):
        Path(path).mkdir(exist_ok=True)
    return {**known, "LC_ALL": "C.UTF-8", **places, **Source(place, place, login).environment()}


@contextmanager
def _private(parent: Path | None = None) -> Iterator[Path]:
    """A directory of our own that is gone at the end; Apptainer leaves directories in it that nobody may write."""
    from toolkit.images.build.remove import remove

    directory = Path(tempfile.mkdtemp(prefix=".toolkit-transfer-", dir=parent))
    try:
        yield directory
    finally:
        remove(directory)


def copy(image: FoundImage, target: str, progress: Progress, *, mode: int = 0o644) -> str:
    """Copy an image and what is known of it into a directory, here or on another machine by ssh.

    All files arrive under names that begin with a dot, are compared with what they were, and only
    then get their own names. Where that fails, or is interrupted, nothing of them is left.

    Args:
        image: what is copied.
        target: a directory, or ``host:directory``.
        progress: is told the steps.
        mode: the permissions of the files there.

    Raises:
        CommandFailedError: the machine does not answer, or what arrived is not what was sent.
        ImageMissingError: the directory is not there.
    """
    host, colon, directory = target.partition(":")
    remote = bool(colon) and "/" not in host
    place: _Destination = _Remote(host, directory or ".") if remote else _Here(Path(target))
    sif_path = Path(image.path)
    files = [
        one
        for one in files_of(sif_path)
        if not one.name.startswith(".") and not one.name.endswith((".log", FAILED_LOG))
    ]
    names = {path: _temporary(path, image) for path in files}
    try:
        for path, name in names.items():
            progress.begin("copy", f"{path.name}, {human_size(path.stat().st_size)}")
            place.send(path, name, mode)
            progress.end()
        # The SIF first: until the manifest has its own name, it is found by the SIF's id.
        place.name(
            {
                name: path.name
                for path, name in sorted(names.items(), key=lambda one: one[0] != sif_path)
            }
        )
    except BaseException:
        place.discard(tuple(names.values()))
        raise
    return f"{target.rstrip('/')}/{sif_path.name}"


def _temporary(path: Path, image: FoundImage) -> str:
    """Return the name that a file has while it arrives; that of a manifest holds the SIF's id."""
    name = Path(image.path).name.removesuffix(".sif")
    if image.manifest and path.name == f"{name}.json":
        return f".{name}.{image.manifest.sif_id}.json"
    return f".{path.name}.{secrets.token_hex(4)}"


class _Destination(Protocol):
    """A directory that files are copied to."""

    def send(self, path: Path, name: str, mode: int) -> None:
        """Put a file there, and compare what arrived."""

    def name(self, names: Mapping[str, str]) -> None:
        """Give files their own names, in this order."""

    def discard(self, names: Sequence[str]) -> None:
        """Remove what has arrived of them, as far as that can be done."""


@dataclass(frozen=True)
class _Here:
    """A directory of this machine."""

    directory: Path

    def send(self, path: Path, name: str, mode: int) -> None:
        """Copy a file; errors as of ``copy``."""
        if not self.directory.is_dir():
            reason = f"the directory {self.directory} is not there"
            raise ImageMissingError(
                reason, place=str(self.directory), next_step=f"mkdir -p {self.directory}"
            )
        temporary = self.directory / name
        try:
            shutil.copyfile(path, temporary)
        except OSError as error:
            raise _not_copied(path, temporary, error) from None
        if hash_file(temporary) != hash_file(path):
            raise CommandFailedError(f"what arrived as {temporary} is not what was sent")
        temporary.chmod(mode)

    def name(self, names: Mapping[str, str]) -> None:
        """Rename the files."""
        for temporary, name in names.items():
            (self.directory / temporary).replace(self.directory / name)

    def discard(self, names: Sequence[str]) -> None:
        """Remove the files."""
        for name in names:
            with suppress(OSError):
                (self.directory / name).unlink(missing_ok=True)


def _not_copied(path: Path, target: Path, error: OSError) -> ToolkitError:
    """Return the error for a file that could not be copied into a directory of this machine."""
    reason = f"{path.name} cannot be written: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(reason, place=str(target.parent))
    return ForbiddenError(reason, place=str(target.parent))


@dataclass(frozen=True)
class _Remote:
    """A directory of another machine, by ssh."""

    host: str
    directory: str

    def __post_init__(self) -> None:
        if self.host.startswith("-"):
            raise UsageError(f"{self.host!r} is no name of a machine", place="TO")

    def _path(self, name: str) -> str:
        return f"{self.directory.rstrip('/')}/{name}"

    def _shell(self, script: str, patience: float = 3600) -> shell.Result:
        return shell.run(
            ["ssh", "-o", "BatchMode=yes", self.host, script], check=False, timeout=patience
        )

    def send(self, path: Path, name: str, mode: int) -> None:
        """Send a file; errors as of ``copy``."""
        there = f"{self.host}:{self._path(name)}"
        if shell.which("rsync"):
            # --protect-args: the other side's shell does not read the name. --inplace: it makes no
            # further file of another name, which an interruption would leave.
            ssh = "ssh -o BatchMode=yes"
            words = ["rsync", "--inplace", "--protect-args", "-e", ssh, "--", str(path), there]
        else:
            words = ["scp", "-q", "-o", "BatchMode=yes", "--", str(path), there]
        sent = shell.run(words, check=False, timeout=_PATIENCE)
        if not sent.ok:
            raise self._failed(f"{path.name} could not be sent to {self.host}", sent)
        temporary = quoted(self._path(name))
        compared = f"test \"$(sha256sum < {temporary} | cut -d' ' -f1)\" = {hash_file(path)}"
        arrived = self._shell(f"{compared} && chmod {mode:o} {temporary}")
        if not arrived.ok:
            raise self._failed(f"what arrived on {self.host} is not what was sent", arrived)

    def name(self, names: Mapping[str, str]) -> None:
        """Rename the files, all of them in one command."""
        pairs = ((quoted(self._path(old)), quoted(self._path(new))) for old, new in names.items())
        done = self._shell(" && ".join(f"mv -f {old} {new}" for old, new in pairs))
        if not done.ok:
            raise self._failed(f"the files could not be named on {self.host}", done)

    def discard(self, names: Sequence[str]) -> None:
        """Remove the files, if the machine answers."""
        with suppress(ToolkitError):
            self._shell(
                "rm -f " + " ".join(quoted(self._path(name)) for name in names), patience=60
            )

    def _failed(self, reason: str, result: shell.Result) -> CommandFailedError:
        step = f"ssh {self.host} ls -a {quoted(self.directory)}"
        return CommandFailedError(
            reason, place=f"{self.host}:{self.directory}", details=result.tail(), next_step=step
        )
