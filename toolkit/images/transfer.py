"""Images from one place to another: to and from a registry (``oras://``), and into a site's directory of images.

A SIF does not travel alone. What is known of it (manifest, bill of materials) goes along: to a registry as a small SIF of its own under the
tag with ``-toolkit`` behind it, which holds nothing but that text; to a directory as files beside it. Nothing appears under an image's name
before it is whole and is what it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit import shell
from toolkit.errors import BuildError, CommandFailedError, ImageMissingError, NeedsInstallError, NoSpaceError, UsageError
from toolkit.images import store
from toolkit.images.prune import FAILED_LOG, files_of
from toolkit.images.registry_auth import credentials
from toolkit.images.registry_names import Reference, is_loopback, parse
from toolkit.images.registry_source import Source
from toolkit.images.store import FoundImage
from toolkit.model.base import BadDataError, from_json
from toolkit.model.image import Manifest
from toolkit.progress import Progress
from toolkit.units import human_size

_BESIDE = "-toolkit"  # ends the tag under which the text about an image is kept
_GENERIC = "6"  # a SIF's data object of no kind that Apptainer knows
_PATIENCE = 6 * 3600.0
_CHUNK = 1 << 20


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
        _apptainer(["push", *_plain(place), image.path, f"oras://{place.pinned}"], environment, place)
        progress.end()
        bundle = _bundle(image)
        if bundle:
            progress.begin("push", "what is known of it")
            small = directory / "about.sif"
            text = directory / "about.json"
            text.write_text(json.dumps(bundle), encoding="utf-8")
            _apptainer(["sif", "new", str(small)], environment, place)
            _apptainer(["sif", "add", "--datatype", _GENERIC, "--groupid", "1", str(small), str(text)], environment, place)
            _apptainer(["push", "-U", *_plain(place), str(small), f"oras://{place.pinned}{_BESIDE}"], environment, place)
            progress.end()
    return place


def pull(origin: str, name: str | None, progress: Progress, *, force: bool = False) -> Path:
    """Bring an image from a registry into the user's own directory; the path of the SIF.

    Args:
        origin: ``oras://...``, as ``push`` wrote it, or ``docker://...``: a foreign image, converted once, before any job runs it.
        name: that it gets; None: that of its manifest, else of the repository.
        force: replace an image of that name.

    Raises:
        UsageError: the origin is none of these, or the name is taken.
        CommandFailedError: the registry does not give it.
        BuildError: what came is not what its manifest describes.
    """
    scheme, separator, reference = origin.partition("://")
    if not separator or scheme not in ("oras", "docker"):
        raise UsageError(
            f"{origin!r} is no place to pull from", place="FROM", next_step="oras://registry/path:tag, or docker://registry/path:tag"
        )
    place = _reference(reference)
    directory = store.images_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with _private(directory) as scratch:
        environment = _environment(place, scratch)
        sif = scratch / "image.sif"
        progress.begin("pull", str(place))
        plain = _plain(place) if scheme == "oras" else [*(("--no-https",) if is_loopback(place.registry) else ())]
        _apptainer(["pull", *plain, str(sif), f"{scheme}://{place.pinned}"], environment, place, directory=directory)
        progress.end()
        manifest, beside = (None, {}) if scheme == "docker" else _about(place, scratch, environment)
        header = store.whole_header(sif)
        if manifest and (manifest.sif_id, manifest.size) != (header.sif_id, sif.stat().st_size):
            raise BuildError(
                f"{place} is not what its manifest describes: somebody pushed another image under this tag",
                place=str(place),
                next_step="push it again from where it was built, or pull it by docker:// as a foreign image",
            )
        chosen = name or (manifest.name if manifest else place.path.rsplit("/", 1)[-1])
        return _appear(sif, chosen, manifest, beside, directory, force=force)


def _appear(sif: Path, name: str, manifest: Manifest | None, beside: dict[str, str], directory: Path, *, force: bool) -> Path:
    import msgspec

    target = directory / f"{name}.sif"
    if target.exists() and not force:
        raise UsageError(
            f"there is an image {name} already", place="--name", next_step="--force replaces it; --name gives the new one another name"
        )
    sif.chmod(0o755)
    if manifest is None:
        target.with_name(f"{name}.json").unlink(missing_ok=True)  # of what had the name before
        sif.replace(target)
    else:
        store.publish(sif, msgspec.structs.replace(manifest, name=name), directory)
    for ending, text in beside.items():
        target.with_name(f"{name}{ending}").write_text(text, encoding="utf-8")
    return target


def _place(target: str) -> Reference:
    if not target.startswith("oras://"):
        raise UsageError(f"{target!r} is no place to push to", place="TO", next_step="oras://registry/path:tag")
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
    texts = (one for one in files_of(path) if one.suffix == ".json" and not one.name.startswith("."))
    return {one.name.removeprefix(stem): one.read_text(encoding="utf-8") for one in texts}


def _about(place: Reference, scratch: Path, environment: dict[str, str]) -> tuple[Manifest | None, dict[str, str]]:
    """What was pushed beside an image; nothing, where somebody else pushed it."""
    small, text = scratch / "about.sif", scratch / "about.json"
    got = shell.run(
        [_program(), "pull", *_plain(place), str(small), f"oras://{place.pinned}{_BESIDE}"], env=environment, check=False, timeout=_PATIENCE
    )
    if not got.ok:
        return None, {}
    dumped = shell.run([_program(), "sif", "dump", "1", str(small)], env=environment, check=False, timeout=60)
    text.write_text(dumped.stdout, encoding="utf-8")
    try:
        bundle = json.loads(dumped.stdout)
        manifest = from_json(bundle.pop(".json"), Manifest)
    except (ValueError, KeyError, BadDataError) as error:
        raise BuildError(f"what is kept beside {place} cannot be read: {error}", place=f"{place}{_BESIDE}") from None
    return manifest, {ending: str(content) for ending, content in bundle.items() if ending.startswith(".") and "/" not in ending}


def _program() -> str:
    program = shell.which("apptainer") or shell.which("singularity")
    if program is None:
        raise NeedsInstallError("Apptainer is not installed here", next_step="toolkit setup")
    return program


def _apptainer(words: list[str], environment: dict[str, str], place: Reference, *, directory: Path | None = None) -> None:
    done = shell.run([_program(), *words], env=environment, check=False, timeout=_PATIENCE)
    if done.ok:
        return
    said = "\n".join(done.tail())
    if "no space left" in said.lower():
        raise NoSpaceError(f"a disk was full while {words[0]} worked", place=str(directory or place), details=done.tail())
    if "unauthorized" in said.lower() or "denied" in said.lower() or "401" in said:
        step = f"apptainer registry login --username NAME oras://{place.registry}, or docker login {place.registry}"
        raise CommandFailedError(f"the registry {place.registry} wants a login", place=str(place), details=done.tail(), next_step=step)
    raise CommandFailedError(f"apptainer {words[0]} failed for {place}", place=str(place), details=done.tail())


def _environment(place: Reference, directory: Path) -> dict[str, str]:
    """For Apptainer: its caches in a directory that goes, the login in the environment, as Docker's or Apptainer's configuration has it."""
    login = credentials(place.registry)
    known = {
        name: os.environ[name] for name in ("PATH", "HOME", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE") if name in os.environ
    }
    places = {f"{tool}_{what}": str(directory / what.lower()) for tool in ("APPTAINER", "SINGULARITY") for what in ("CACHEDIR", "TMPDIR")}
    for path in set(places.values()):
        Path(path).mkdir(exist_ok=True)
    return {**known, "LC_ALL": "C.UTF-8", **places, **Source(place, place, login).environment()}


@contextmanager
def _private(parent: Path | None = None) -> Iterator[Path]:
    """A directory of our own that is gone at the end; Apptainer leaves directories in it that nobody may write."""
    from toolkit.images.builders.remove import remove

    directory = Path(tempfile.mkdtemp(prefix=".toolkit-transfer-", dir=parent))
    try:
        yield directory
    finally:
        remove(directory)


def copy(image: FoundImage, target: str, progress: Progress, *, mode: int = 0o644) -> str:
    """Copy an image and what is known of it into a directory here, or (``host:directory``) on another machine by ssh.

    It arrives under a name that begins with a dot, is compared with what it was, and only then gets its own.

    Args:
        mode: its permissions there.

    Raises:
        CommandFailedError: the machine does not answer, or what arrived is not what was sent.
        ImageMissingError: the directory is not there.
    """
    host, colon, directory = target.partition(":")
    remote = bool(colon) and "/" not in host
    sif = Path(image.path)
    files = [path for path in files_of(sif) if not path.name.startswith(".") and not path.name.endswith((".log", FAILED_LOG))]
    for path in sorted(files, key=lambda path: path == sif):  # the SIF last: what is said of it is there before it
        progress.begin("copy", f"{path.name}, {human_size(path.stat().st_size)}")
        if remote:
            _send(path, host, directory, mode)
        else:
            _put(path, Path(target), mode)
        progress.end()
    return f"{target.rstrip('/')}/{sif.name}"


def _put(path: Path, directory: Path, mode: int) -> None:
    if not directory.is_dir():
        raise ImageMissingError(f"the directory {directory} is not there", place=str(directory), next_step=f"mkdir -p {directory}")
    temporary = directory / f".{path.name}.{os.getpid()}"
    try:
        shutil.copyfile(path, temporary)
        if digest(temporary) != digest(path):
            raise CommandFailedError(f"what arrived as {temporary} is not what was sent")
        temporary.chmod(mode)
        temporary.replace(directory / path.name)
    finally:
        temporary.unlink(missing_ok=True)


def _send(path: Path, host: str, directory: str, mode: int) -> None:
    from toolkit.quoting import shell as quoted

    if host.startswith("-"):
        raise UsageError(f"{host!r} is no name of a machine", place="TO")
    temporary = f"{directory.rstrip('/')}/.{path.name}.{os.getpid()}"
    ssh = ["ssh", "-o", "BatchMode=yes"]
    if shell.which("rsync"):
        # --protect-args: the other side's shell does not read the name.
        words = ["rsync", "--partial", "--protect-args", "-e", " ".join(ssh), "--", str(path), f"{host}:{temporary}"]
    else:
        words = ["scp", "-q", "-o", "BatchMode=yes", "--", str(path), f"{host}:{temporary}"]
    sent = shell.run(words, check=False, timeout=_PATIENCE)
    if not sent.ok:
        raise CommandFailedError(
            f"{path.name} could not be sent to {host}",
            place=f"{host}:{directory}",
            details=sent.tail(),
            next_step=f"ssh {host} ls {directory}",
        )
    finish = (
        f"test \"$(sha256sum < {quoted(temporary)} | cut -d' ' -f1)\" = {digest(path)} && chmod {mode:o} {quoted(temporary)} "
        f"&& mv -f {quoted(temporary)} {quoted(f'{directory.rstrip(chr(47))}/{path.name}')}"
    )
    done = shell.run([*ssh, host, finish], check=False, timeout=3600)
    if not done.ok:
        shell.run([*ssh, host, f"rm -f {quoted(temporary)}"], check=False, timeout=60)
        raise CommandFailedError(f"what arrived on {host} is not what was sent", place=f"{host}:{directory}", details=done.tail())


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
