"""Transfer images: to and from a registry (``oras://``), and into a site's image directory.

A SIF does not travel alone. Its manifest and its bill of materials go along: to a
registry as a small SIF under the tag with the suffix ``-toolkit``, which has nothing but that
text; to a directory as files beside it. No file gets the name of an image before it is complete and
equal to what was sent.
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
from toolkit.images.store.store import StoredImage
from toolkit.model.base import from_json
from toolkit.model.image import Manifest
from toolkit.progress import Progress
from toolkit.quoting import shell as quoted
from toolkit.units import human_size

_BESIDE = "-toolkit"  # suffix of the tag for the text about an image
_GENERIC = "6"  # the type of a SIF's data object that is no type of Apptainer's own
_PATIENCE = 6 * 3600.0


def push(image: StoredImage, target: str, progress: Progress) -> Reference:
    """Push an image, its manifest and its bill of materials to a registry.

    Raises:
        UsageError: the target is not of the form ``oras://registry/path:tag``.
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
            progress.begin("push", "manifest and bill of materials")
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
    """Pull an image from a registry into the user's own directory. Return the path of the SIF.

    Args:
        origin: ``oras://...``, as ``push`` wrote it, or ``docker://...``: a foreign image,
            converted once, before any job runs it.
        progress: shows the steps.
        name: of the image here; None: that of its manifest, else of the repository.
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
            f"{origin!r} cannot be pulled from",
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
                f"{place} is not what its manifest describes: "
                "another image was pushed under this tag",
                place=str(place),
                next_step="push it again from where it was built, "
                "or pull it by docker:// as a foreign image",
            )
        chosen = name or (manifest.name if manifest else wanted.path.rsplit("/", 1)[-1])
        image_name(chosen, str(place))
        if manifest is None:
            progress.begin("inspect", "contents of the image")
            manifest = foreign.describe(sif, origin, place.digest)
            progress.end()
        manifest = msgspec.structs.replace(manifest, origin=origin)
        return _appear(sif, chosen, manifest, beside, directory, force=force)


def _now(wanted: Reference) -> Reference:
    """Return the reference that is fetched, with the digest that its tag has now."""
    return source(str(wanted), written="FROM").place


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
            f"an image {name} exists already",
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
            f"{target!r} cannot be pushed to", place="TO", next_step="oras://registry/path:tag"
        )
    return _reference(target.removeprefix("oras://"))


def _reference(text: str) -> Reference:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(str(error), place="reference", next_step="registry/path:tag") from None


def _plain(place: Reference) -> list[str]:
    return ["--no-https"] if is_loopback(place.registry) else []


def _bundle(image: StoredImage) -> dict[str, str]:
    """Return the texts of the files that go along, by the endings of their names."""
    path = Path(image.path)
    if image.manifest is None:
        return {}
    stem = path.name.removesuffix(".sif")
    texts = (
        file for file in files_of(path) if file.suffix == ".json" and not file.name.startswith(".")
    )
    return {file.name.removeprefix(stem): file.read_text(encoding="utf-8") for file in texts}


def _about(
    place: Reference, scratch: Path, environment: dict[str, str]
) -> tuple[Manifest | None, dict[str, str]]:
    """Return the manifest and files that were pushed beside an image; none by other programs."""
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
        reason = f"the manifest beside {place} cannot be read: {error}"
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
    output = "\n".join(done.tail())
    if "no space left" in output.lower():
        raise NoSpaceError(
            f"a disk was full while {words[0]} worked",
            place=str(directory or place),
            details=done.tail(),
        )
    if "unauthorized" in output.lower() or "denied" in output.lower() or "401" in output:
        step = (
            f"apptainer registry login --username NAME oras://{place.registry}, "
            f"or docker login {place.registry}"
        )
        raise CommandFailedError(
            f"the registry {place.registry} requires a login",
            place=str(place),
            details=done.tail(),
            next_step=step,
        )
    raise CommandFailedError(
        f"apptainer {words[0]} failed for {place}", place=str(place), details=done.tail()
    )


def _environment(place: Reference, directory: Path) -> dict[str, str]:
    """Return Apptainer's environment: caches in a temporary directory, and the user's login."""
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
    """Yield a temporary directory, and remove it with the read-only ones that Apptainer makes."""
    from toolkit.images.build.remove import remove

    directory = Path(tempfile.mkdtemp(prefix=".toolkit-transfer-", dir=parent))
    try:
        yield directory
    finally:
        remove(directory)


def copy(image: StoredImage, target: str, progress: Progress, *, mode: int = 0o644) -> str:
    """Copy an image and its files into a directory of this machine, or of another by ssh.

    All files arrive under names that begin with a dot, are compared with the originals, and only
    then get their own names. If that fails or is interrupted, none of them is left.

    Args:
        image: the image to copy.
        target: a directory, or ``host:directory``.
        progress: shows the steps.
        mode: the permissions of the files there.

    Raises:
        CommandFailedError: the machine does not answer, or what arrived differs from what was sent.
        ImageMissingError: the directory does not exist.
    """
    host, colon, directory = target.partition(":")
    remote = bool(colon) and "/" not in host
    place: _Destination = _Remote(host, directory or ".") if remote else _Here(Path(target))
    sif_path = Path(image.path)
    files = [
        file
        for file in files_of(sif_path)
        if not file.name.startswith(".") and not file.name.endswith((".log", FAILED_LOG))
    ]
    names = {path: _temporary(path, image) for path in files}
    try:
        for path, name in names.items():
            progress.begin("copy", f"{path.name}, {human_size(path.stat().st_size)}")
            place.send(path, name, mode)
            progress.end()
        # The SIF first: until the manifest has its own name, readers find it by the SIF's id.
        place.name(
            {
                name: path.name
                for path, name in sorted(names.items(), key=lambda item: item[0] != sif_path)
            }
        )
    except BaseException:
        place.discard(tuple(names.values()))
        raise
    return f"{target.rstrip('/')}/{sif_path.name}"


def _temporary(path: Path, image: StoredImage) -> str:
    """Return the name that a file has while it arrives; that of a manifest holds the SIF's id."""
    name = Path(image.path).name.removesuffix(".sif")
    if image.manifest and path.name == f"{name}.json":
        return f".{name}.{image.manifest.sif_id}.json"
    return f".{path.name}.{secrets.token_hex(4)}"


class _Destination(Protocol):
    """A directory that files are copied to."""

    def send(self, path: Path, name: str, mode: int) -> None:
        """Copy a file into it, and compare what arrived."""

    def name(self, names: Mapping[str, str]) -> None:
        """Give files their own names, in this order."""

    def discard(self, names: Sequence[str]) -> None:
        """Remove those that have arrived, as far as possible."""


@dataclass(frozen=True)
class _Here:
    """A directory of this machine."""

    directory: Path

    def send(self, path: Path, name: str, mode: int) -> None:
        """Copy a file; errors as of ``copy``."""
        if not self.directory.is_dir():
            reason = f"the directory {self.directory} does not exist"
            raise ImageMissingError(
                reason, place=str(self.directory), next_step=f"mkdir -p {self.directory}"
            )
        temporary = self.directory / name
        try:
            shutil.copyfile(path, temporary)
        except OSError as error:
            raise _not_copied(path, temporary, error) from None
        if hash_file(temporary) != hash_file(path):
            raise CommandFailedError(f"what arrived as {temporary} differs from what was sent")
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
            raise UsageError(f"{self.host!r} is not a host name", place="TO")

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
            # --protect-args: the remote shell does not interpret the name. --inplace: there is no
            # second file of another name, which an interruption would leave.
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
            raise self._failed(f"what arrived on {self.host} differs from what was sent", arrived)

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
