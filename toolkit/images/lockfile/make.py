"""Make the lock of an image: all that it was built from."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolkit import shell
from toolkit.errors import (
    BuildError,
    CommandFailedError,
    ImageMissingError,
)
from toolkit.images.host import host_config as host
from toolkit.images.host.host_config import write_host_config
from toolkit.images.host.host_mounts import ROOT, Bind, HostConfig, mount_options
from toolkit.images.host.workspace import Workspace, workspace
from toolkit.images.lockfile.apply import (
    build_requirements,
    hash_parts,
    locked_host_config,
    parse_missing,
    with_build_packages,
)
from toolkit.images.lockfile.files import missing_packages_error, open_index
from toolkit.images.lockfile.index import Index
from toolkit.images.lockfile.packages import File, choose_file, find_origin, is_source
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Debootstrap, LocalImage
from toolkit.images.recipe.lock import Lock, Pinned
from toolkit.images.recipe.names import normalize_name
from toolkit.images.recipe.plan import Plan, with_keys
from toolkit.images.store import store
from toolkit.images.store.cache import BASES, Cache
from toolkit.images.store.contents import Contents, PythonPackage, read_contents
from toolkit.images.store.provenance import describe_base, expected_hash
from toolkit.images.store.settings import run_in_image
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Manifest

_INSTALLED = re.compile(r"^Inst (?P<name>\S+) (?:\[\S*\] )?\((?P<version>\S+) ", re.MULTILINE)
_PATIENCE = 600.0  # seconds


def make(recipe: str, epoch: int) -> Lock:
    """Make the lock of an image: all that it was built from.

    Args:
        recipe: its name or path. Its image must exist, and be of the recipe as it is now.
        epoch: now, in seconds since 1970.

    Raises:
        ImageMissingError: the image does not exist, or is of another recipe.
        BuildError: it does not list its contents, or the mirror has other versions by now.
        CommandFailedError: a package index does not answer.
    """
    resolved = library.load(recipe)
    image = store.find(str(store.images_directory() / f"{resolved.name}.sif"))
    manifest = _manifest(image, resolved)
    contents, index = read_contents(image.path), open_index(resolved)
    lock = Lock(
        name=resolved.name,
        recipe_hash=library.hash_recipe(resolved),
        epoch=epoch,
        base=manifest.base
        if manifest.base and manifest.base.digest
        else describe_base(resolved.base, digest=True),
        parts=hash_parts(resolved),
        tools=manifest.tools,
        apt=contents.packages.apt,
        pip=_pinned(contents, index, _of_base(resolved, manifest)),
        pip_build=_build_files(contents, build_requirements(resolved), index),
        layers=manifest.layers,
        products=manifest.products,
    )
    return (
        with_build_packages(lock, build_packages(image, resolved, lock))
        if contents.debian
        else lock
    )


def _manifest(image: StoredImage, resolved: Plan) -> Manifest:
    hashes = (library.hash_recipe(resolved), expected_hash(resolved))
    if image.manifest is None or image.manifest.recipe_hash not in hashes:
        raise ImageMissingError(
            f"the image {resolved.name} is of another recipe than there is now",
            place=image.path,
            next_step=f"toolkit image build {resolved.name}",
        )
    return image.manifest


def _of_base(resolved: Plan, manifest: Manifest) -> dict[str, str]:
    """Return the Python packages of the base, if the base is on this machine.

    They need not be fetched to build on it.
    """
    base = resolved.base
    if "python" not in base.output().holds and not isinstance(base, LocalImage):
        return {}
    path = base.path if isinstance(base, LocalImage) else ""
    if not path and manifest.base:
        key = with_keys(resolved, manifest.base.digest).base_key
        cached = Cache(store.images_directory()).find(BASES, key)
        path = cached.path if cached else ""
    return (
        {
            normalize_name(name): version
            for name, version in read_contents(path).packages.pip.items()
        }
        if path
        else {}
    )


def _pinned(contents: Contents, index: Index, of_base: Mapping[str, str]) -> tuple[Pinned, ...]:
    pinned: dict[str, Pinned] = {}
    for package in contents.pip:
        brought = of_base.get(normalize_name(package.name)) == package.version
        file = None if brought else _origin(package, index)
        pinned.setdefault(package.name, _pin(package.name, package.version, file, index))
    return tuple(pinned.values())


def _pin(name: str, version: str, file: File | None, index: Index) -> Pinned:
    """Pin a package to its file, if it has one."""
    bare = Pinned(name=name, version=version)
    if file is None:
        return bare
    sha256, source = index.digest(file), is_source(file.name)
    return msgspec.structs.replace(bare, file=file.name, sha256=sha256, source=source)


def _origin(package: PythonPackage, index: Index) -> File | None:
    """Return the file that a package was installed from.

    The recipe's own indexes are searched only for files that the others do not have.
    """
    name, version, tags = package.name, package.version, package.tags
    files = index.files(name)
    file = find_origin(name, version, tags, files)
    if file and not is_source(file.name):
        return file
    try:
        return find_origin(name, version, tags, [*files, *index.further(name)])
    except CommandFailedError:
        if file:
            return file
        raise


def _build_files(contents: Contents, wanted: Mapping[str, str], index: Index) -> tuple[Pinned, ...]:
    """Return the files that only the build stage installs, not those of the image."""
    has = {normalize_name(package.name): package.version for package in contents.pip}
    python, glibc = contents.python, _glibc(contents)
    files = {
        name: choose_file(name, version, python, platform.machine(), index.files(name), glibc)
        for name, version in sorted(wanted.items())
        if has.get(normalize_name(name)) != version
    }
    return tuple(_pin(name, wanted[name], file, index) for name, file in files.items() if file)


def _glibc(contents: Contents) -> tuple[int, int] | None:
    """Return the version of the image's C library; None if it has no libc6 package."""
    version = next((package.version for package in contents.debian if package.name == "libc6"), "")
    numbers = re.match(r"(\d{1,3})\.(\d{1,3})", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def build_packages(image: StoredImage, resolved: Plan, lock: Lock) -> dict[str, str]:
    """Return the packages that apt would add to the image for a build.

    Raises:
        BuildError: the mirror no longer has a package of the image, or apt fails.
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
        host_config = locked_host_config(host.collect_host_config(), lock, str(files))
        answer = _run_script(image, _with_lists(host_config, resolved), place, script)
    gone = parse_missing(answer.stdout + answer.stderr)
    if gone:
        raise missing_packages_error(lock.name, gone)
    if not answer.ok:
        raise BuildError(
            "apt could not be asked what a build needs", place=image.path, details=answer.tail()
        )
    return {
        match["name"]: match["version"]
        for match in _INSTALLED.finditer(answer.stdout)
        if match["name"] not in lock.apt
    }


def _with_lists(host_config: HostConfig, resolved: Plan) -> HostConfig:
    """Configure apt to write nothing into the image.

    It uses this machine's mirror if the image names none.
    """
    text = (
        f'Dir::State::Lists "{ROOT}/w/lists/";\nDir::Cache "{ROOT}/w/cache/";\n'
        'APT::Sandbox::User "root";\nDebug::NoLocking "1";\n'
    )
    files = dict(host_config.files)
    if isinstance(resolved.base, Debootstrap):
        release = resolved.base.release
        files["sources.list"] = f"deb {host.debian_mirror(release)} {release} main\n"
        text += f'Dir::Etc::SourceList "{ROOT}/sources.list";\nDir::Etc::SourceParts "-";\n'
    files["apt.conf"] = files["apt.conf"] + text
    return msgspec.structs.replace(host_config, files=files)


def _run_script(
    image: StoredImage, host_config: HostConfig, place: Workspace, script: str
) -> shell.Result:
    """Run a script in the image with the host configuration; it may write below ``/mnt/w``."""
    binds = write_host_config(host_config, place.scratch / "host")
    writable = place.scratch / "w"
    writable.mkdir()
    (place.scratch / "host" / "w").mkdir()
    mounts = mount_options((*binds, Bind(source=str(writable), target=f"{ROOT}/w", writable=True)))
    return run_in_image(
        image.path,
        ["/bin/sh", "-ec", script],
        timeout=_PATIENCE,
        options=["--env", f"APT_CONFIG={ROOT}/apt.conf", *mounts],
        variables=host.proxies(),
    )
