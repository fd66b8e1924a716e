"""Making a lock of an image, and bringing what one names to a build."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from toolkit import shell
from toolkit.errors import (
    BuildError,
    CommandFailedError,
    ConfigError,
    ImageMissingError,
    ToolkitError,
)
from toolkit.files import hash_file, read_toml
from toolkit.images.build import host_config as host
from toolkit.images.build.apptainer.cache import BASES, Cache
from toolkit.images.build.apptainer.programs import write_host_config
from toolkit.images.build.contents import Contents, PythonPackage
from toolkit.images.build.host_mounts import ROOT, HostConfig, bind_option
from toolkit.images.build.image_probe import read_contents
from toolkit.images.build.provenance import describe_base, expected_hash
from toolkit.images.build.workspace import Workspace, workspace
from toolkit.images.lockfile.apply import (
    build_requirements,
    changes,
    locked_loan,
    missing,
    parts,
    with_build_packages,
)
from toolkit.images.lockfile.index import Index
from toolkit.images.lockfile.packages import File, for_python, is_source, normal, origin
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Debootstrap, LocalImage
from toolkit.images.recipe.chain import build_chain
from toolkit.images.recipe.names import file_name, sha256
from toolkit.images.recipe.resolve import Resolved
from toolkit.images.store import store
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Manifest
from toolkit.model.lock import FORMAT, Lock, Pinned

_INDEX = re.compile(r"--(?:extra-)?index-url[ =](\S+)")
_INSTALLED = re.compile(r"^Inst (?P<name>\S+) (?:\[\S*\] )?\((?P<version>\S+) ", re.MULTILINE)
_PATIENCE = 600.0  # seconds
_FILES = ".cache/files"


def lock_path(recipe: str) -> Path:
    """Where the lock of a recipe is: beside it."""
    return library.recipe_path(recipe).with_suffix(".lock")


def read(path: Path, resolved: Resolved) -> Lock:
    """The lock of a recipe.

    Raises:
        ConfigError: it is not there, or broken, or the recipe has changed since; says what.
    """
    if not path.is_file():
        raise ConfigError(
            f"{resolved.name} has no lock",
            place=str(path),
            next_step=f"toolkit image lock {resolved.name}",
        )
    lock = read_toml(path, Lock, named=True)  # beside the recipe that the user named
    if lock.format != FORMAT:
        raise ConfigError(
            f"the lock is of format {lock.format}, not {FORMAT}",
            place=str(path),
            next_step=f"toolkit image lock {resolved.name}",
        )
    changed = changes(lock, resolved, library.recipe_hash(resolved))
    if changed:
        raise ConfigError(
            f"the recipe of {resolved.name} is not the one that was locked",
            place=str(path),
            details=changed,
            next_step=f"toolkit image build {resolved.name}, and then: toolkit image lock {resolved.name}",
        )
    return lock


def make(recipe: str, epoch: int) -> Lock:
    """Everything that the image of a recipe was built from.

    Args:
        recipe: its name or path. Its image has to be there, and of the recipe as it is now.
        epoch: now, in seconds since 1970.

    Raises:
        ImageMissingError: the image is not there, or of another recipe.
        BuildError: it does not say what is in it, or the mirror has something else by now.
        CommandFailedError: a package index does not answer.
    """
    resolved = library.load(recipe)
    image = store.find(str(store.images_directory() / f"{resolved.name}.sif"))
    manifest = _manifest(image, resolved)
    found, index = read_contents(image.path), _index(resolved)
    lock = Lock(
        name=resolved.name,
        recipe_hash=library.recipe_hash(resolved),
        epoch=epoch,
        base=manifest.base
        if manifest.base and manifest.base.digest
        else describe_base(resolved.base, digest=True),
        parts=parts(resolved),
        tools=manifest.tools,
        apt=found.packages.apt,
        pip=_pinned(found, index, _of_base(resolved, manifest)),
        pip_build=_build_files(found, build_requirements(resolved), index),
        layers=manifest.layers,
        products=manifest.products,
    )
    return (
        with_build_packages(lock, build_packages(image, resolved, lock)) if found.debian else lock
    )


def _manifest(image: StoredImage, resolved: Resolved) -> Manifest:
    if image.manifest is None or parts_changed(image.manifest, resolved):
        raise ImageMissingError(
            f"the image {resolved.name} is of another recipe than there is now",
            place=image.path,
            next_step=f"toolkit image build {resolved.name}",
        )
    return image.manifest


def parts_changed(manifest: Manifest, resolved: Resolved) -> bool:
    """Whether an image is of another recipe than this."""
    return manifest.recipe_hash not in (library.recipe_hash(resolved), expected_hash(resolved))


def _index(resolved: Resolved) -> Index:
    lines = (
        line
        for output in resolved.outputs
        for line in (*output.lines, *getattr(output, "build_lines", ()))
    )
    further = (shlex.split(url)[0] for line in lines for url in _INDEX.findall(line))
    return Index(host.read_pip_settings(), dict.fromkeys(further))


def _of_base(resolved: Resolved, manifest: Manifest) -> dict[str, str]:
    """The packages of Python that the base brought, where the base is at hand; they need not be fetched to build on it."""
    base = resolved.base
    if "python" not in base.holds and not isinstance(base, LocalImage):
        return {}
    path = base.path if isinstance(base, LocalImage) else ""
    if not path and manifest.base:
        key = build_chain(library.build_stages(resolved), manifest.base.digest).base_key
        kept = Cache(store.images_directory()).find(BASES, key)
        path = kept.path if kept else ""
    return (
        {normal(name): version for name, version in read_contents(path).packages.pip.items()}
        if path
        else {}
    )


def _pinned(found: Contents, index: Index, of_base: Mapping[str, str]) -> tuple[Pinned, ...]:
    pinned: dict[str, Pinned] = {}
    for one in found.pip:
        brought = of_base.get(normal(one.name)) == one.version
        file = None if brought else _origin(one, index)
        bare = Pinned(name=one.name, version=one.version)
        known = (
            msgspec.structs.replace(
                bare, file=file.name, sha256=index.digest(file), source=is_source(file.name)
            )
            if file
            else bare
        )
        pinned.setdefault(one.name, known)
    return tuple(pinned.values())


def _origin(one: PythonPackage, index: Index) -> File | None:
    """The file that a package was installed from; the recipe's own indexes are asked only for what the others do not have."""
    files = index.files(one.name)
    found = origin(one.name, one.version, one.tags, files)
    if found and not is_source(found.name):
        return found
    try:
        return origin(one.name, one.version, one.tags, [*files, *index.further(one.name)])
    except CommandFailedError:
        if found:
            return found
        raise


def _build_files(found: Contents, wanted: Mapping[str, str], index: Index) -> tuple[Pinned, ...]:
    """What only the build stage installs; what it shares with the image is known already."""
    has = {normal(one.name): one.version for one in found.pip}
    pinned: list[Pinned] = []
    for name, version in sorted(wanted.items()):
        offered = index.files(name) if has.get(normal(name)) != version else []
        file = for_python(name, version, found.python, platform.machine(), offered, _glibc(found))
        if file:
            pinned.append(
                Pinned(
                    name=name,
                    version=version,
                    file=file.name,
                    sha256=index.digest(file),
                    source=is_source(file.name),
                )
            )
    return tuple(pinned)


def _glibc(found: Contents) -> tuple[int, int] | None:
    """Return the version of the image's C library; None where its packages do not tell."""
    version = next((one.version for one in found.debian if one.name == "libc6"), "")
    numbers = re.match(r"(\d{1,3})\.(\d{1,3})", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def build_packages(image: StoredImage, resolved: Resolved, lock: Lock) -> dict[str, str]:
    """What apt would add to the image for a build, and that the mirror still has what is in it.

    Raises:
        BuildError: it has not, or apt cannot be asked.
    """
    wanted = sorted(
        {
            package.partition("=")[0]
            for output in resolved.outputs
            for package in output.build_packages
        }
    )
    script = (
        f"mkdir -p {ROOT}/w/lists/partial {ROOT}/w/cache/archives/partial; apt-get -qq update >&2; "
    )
    script += f"apt-get -s install --no-install-recommends {' '.join(wanted)}" if wanted else "true"
    with workspace(Path(image.path).parent) as place:
        files = place.scratch / "none"
        files.mkdir()
        lent = locked_loan(host.collect_host_config(), lock, str(files))
        said = _asked(image, _with_lists(lent, resolved), place, script)
    gone = missing(said.stdout + said.stderr)
    if gone:
        raise _moved_on(lock.name, gone)
    if not said.ok:
        raise BuildError(
            "apt could not be asked what a build needs", place=image.path, details=said.tail()
        )
    return {
        found["name"]: found["version"]
        for found in _INSTALLED.finditer(said.stdout)
        if found["name"] not in lock.apt
    }


def _with_lists(loan: HostConfig, resolved: Resolved) -> HostConfig:
    """So that apt writes nothing into the image, and asks the mirror of this machine where the image names none."""
    text = f'Dir::State::Lists "{ROOT}/w/lists/";\nDir::Cache "{ROOT}/w/cache/";\nAPT::Sandbox::User "root";\nDebug::NoLocking "1";\n'
    files = dict(loan.files)
    if isinstance(resolved.base, Debootstrap):
        release = resolved.base.release
        files["sources.list"] = f"deb {host.debian_mirror(release)} {release} main\n"
        text += f'Dir::Etc::SourceList "{ROOT}/sources.list";\nDir::Etc::SourceParts "-";\n'
    files["apt.conf"] = files["apt.conf"] + text
    return msgspec.structs.replace(loan, files=files)


def _asked(image: StoredImage, loan: HostConfig, place: Workspace, script: str) -> shell.Result:
    """What a script in the image says that sees what is lent, and may write below ``/mnt/w``."""
    lent = write_host_config(loan, place.scratch / "host")
    writable = place.scratch / "w"
    writable.mkdir()
    (place.scratch / "host" / "w").mkdir()
    mounts = [word for bind in lent for word in ("--mount", bind_option(bind.source, bind.target))]
    mounts += ["--mount", bind_option(str(writable), f"{ROOT}/w", writable=True)]
    argv = [
        shell.require_apptainer(),
        "--silent",
        "exec",
        "--containall",
        "--cleanenv",
        "--env",
        f"APT_CONFIG={ROOT}/apt.conf",
        *mounts,
        image.path,
    ]
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(Path.home()),
        "LC_ALL": "C.UTF-8",
        **host.proxies(),
    }
    return shell.run(
        [*argv, "/bin/sh", "-ec", script], env=environment, cwd="/", timeout=_PATIENCE, check=False
    )


def _moved_on(name: str, gone: Iterable[str]) -> BuildError:
    gone = tuple(gone)
    count = "1 package" if len(gone) == 1 else f"{len(gone)} packages"
    return BuildError(
        f"the mirror no longer has {count} of {name} in the version that is locked",
        place=", ".join(one.split()[0] for one in gone),
        details=gone,
        next_step=f"set {host.MIRROR_VARIABLE} to a mirror that keeps old versions (snapshot.debian.org), or build it now and lock that",
    )


def bring(lock: Lock, resolved: Resolved, images: Path, target: Path) -> HostConfig:
    """Fetch the files of a lock, and say what to lend to a build by it.

    Args:
        images: beside whose images fetched files are kept.
        target: a directory, not there yet, for the files of this build.

    Raises:
        BuildError: a file is gone, or another one has its name now; all such are named.
        MalformedInputError: a file's name or hash in the lock cannot be one.
    """
    index = _index(resolved)
    place = f"the lock of {lock.name}"
    kept_at = {
        one: images / _FILES / sha256(one.sha256, place) / file_name(one.file, place)
        for one in lock.files
    }
    target.mkdir()
    gone: list[str] = []
    for one, kept in kept_at.items():
        if not kept.is_file() or hash_file(kept) != one.sha256:
            kept.parent.mkdir(parents=True, exist_ok=True)
            if not any(index.fetch(file, kept) == one.sha256 for file in _fitting(one, index)):
                kept.unlink(missing_ok=True)
                gone.append(f"{one.name} {one.version}: {one.file} (sha256 {one.sha256})")
                continue
        shutil.copyfile(kept, target / kept.name)
    if gone:
        count = "1 file" if len(gone) == 1 else f"{len(gone)} files"
        raise BuildError(
            f"no package index has {count} of the lock of {lock.name} any more, or has another under the same name",
            place=", ".join(one.split()[0] for one in gone),
            details=gone,
            next_step="add the index or directory that has it to pip's configuration (find-links), or lock again",
        )
    return locked_loan(host.collect_host_config(), lock, str(target))


def _fitting(one: Pinned, index: Index) -> Iterator[File]:
    """Places of a file; the recipe's own indexes are asked when the others are done."""
    for look in (index.files, index.further):
        try:
            yield from (
                file
                for file in look(one.name)
                if file.name == one.file and file.sha256 in ("", one.sha256)
            )
        except CommandFailedError:
            if look == index.files:
                raise


def explained(error: ToolkitError, lock: Lock, log: Path) -> ToolkitError:
    """Why a locked build failed, where that is because a mirror has moved on; else the error as it was."""
    try:
        gone = missing(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return error
    return _moved_on(lock.name, gone) if gone else error
