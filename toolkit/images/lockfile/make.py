"""Make the lock of an image: all that it was built from."""

from __future__ import annotations

import platform
import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from toolkit.errors import BuildError, ImageMissingError
from toolkit.images.lockfile.files import open_index
from toolkit.images.lockfile.index import File
from toolkit.images.recipe import library
from toolkit.images.recipe.bases import Base, LocalImage
from toolkit.images.recipe.block import BUILD_PACKAGES
from toolkit.images.recipe.lock import Lock, Pinned
from toolkit.images.recipe.names import normalize_name
from toolkit.images.recipe.plan import Plan, with_keys
from toolkit.images.store import store
from toolkit.images.store.cache import BASES, Cache
from toolkit.images.store.contents import Contents, read_contents
from toolkit.images.store.provenance import describe_base, expected_hash
from toolkit.images.store.settings import run_in_image
from toolkit.images.store.store import StoredImage
from toolkit.model.image import Manifest, Packages

_LISTED = re.compile(r"(?P<name>[^\s=]+)(?P<kind> |==)(?P<version>[^\s=]+)")
_DEBIAN_WHEEL = re.compile(r"python3-(?P<name>[\w.-]+)-whl")
_MACHINES = ("x86_64", "aarch64")
_GLIBC = (17, 28, *range(31, 41))  # the versions 2.x that uv knows
_PATIENCE = 60.0  # seconds


def make(recipe: str, epoch: int) -> Lock:
    """Make the lock of an image: all that it was built from.

    Args:
        recipe: its name or path. Its image must exist, and be of the recipe as it is now.
        epoch: now, in seconds since 1970.

    Raises:
        ImageMissingError: the image does not exist, or is of another recipe.
        BuildError: it does not list its contents.
        CommandFailedError: a package index does not answer.
    """
    resolved = library.load(recipe)
    image = store.find(str(store.images_directory() / f"{resolved.name}.sif"))
    manifest = image.manifest
    hashes = (library.hash_recipe(resolved), expected_hash(resolved))
    if manifest is None or manifest.recipe_hash not in hashes:
        raise ImageMissingError(
            f"the image {resolved.name} is of another recipe than there is now",
            place=image.path,
            next_step=f"toolkit image build {resolved.name}",
        )
    contents = read_contents(image.path)
    build = _list_build(image, resolved.base, contents.packages)
    lock = Lock(
        name=resolved.name,
        recipe_hash=library.hash_recipe(resolved),
        epoch=epoch,
        base=manifest.base
        if manifest.base and manifest.base.digest
        else describe_base(resolved.base, digest=True),
        tools=manifest.tools,
        python=contents.python,
        apt=contents.packages.apt,
        apt_build=build.apt,
        layers=manifest.layers,
    )
    brought = _of_base(resolved, manifest) | _of_debian(lock)
    return _pin_packages(lock, contents, resolved, brought, build.pip)


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
    packages = read_contents(path).packages.pip if path else {}
    return {normalize_name(name): version for name, version in packages.items()}


def _of_debian(lock: Lock) -> dict[str, str]:
    """Return the Python packages that Debian's ``venv`` installed of wheels of Debian."""
    wheels = (
        (_DEBIAN_WHEEL.fullmatch(name), version)
        for name, version in (lock.apt_build | lock.apt).items()
    )
    return {match["name"]: re.split("[+-]", version)[0] for match, version in wheels if match}


def _pin_packages(
    lock: Lock,
    contents: Contents,
    resolved: Plan,
    brought: Mapping[str, str],
    needed: Mapping[str, str],
) -> Lock:
    """Return the lock with the files of all Python packages.

    Those of a package are all wheels that the image's Python takes, of which pip takes the best
    again, else the source; of what a step compiles, the source.
    """
    index, versions, target = open_index(resolved), contents.packages.pip, _platform(contents)
    wanted = {
        name: version
        for name, version in versions.items()
        if brought.get(normalize_name(name)) != version
    }
    compiled = {
        normalize_name(name)
        for output in resolved.outputs
        if output.build_lines
        for name in output.brings
    }
    pip = _pin(wanted, index.list_files(wanted, contents.python, target), compiled)
    pip_build = _pin(needed, index.list_files(needed, contents.python, target))
    pinned = {package.name for package in pip}
    return msgspec.structs.replace(
        lock,
        pip=pip,
        pip_build=pip_build,
        brought={name: version for name, version in versions.items() if name not in pinned},
    )


def _pin(
    wanted: Mapping[str, str], offered: Sequence[File], compiled: Collection[str] = ()
) -> tuple[Pinned, ...]:
    """Return the packages that an index has, by name, with the hashes of their files."""
    pinned = list[Pinned]()
    for name in sorted(wanted, key=str.lower):
        files = [file for file in offered if file.package == normalize_name(name)]
        wheels = [file for file in files if file.name.endswith(".whl")]
        sources = [file for file in files if file not in wheels]
        taken = sources if normalize_name(name) in compiled else wheels or sources
        digests = {file.sha256 for file in taken}
        if digests:
            pinned.append(Pinned(name=name, version=wanted[name], sha256=tuple(sorted(digests))))
    return tuple(pinned)


def _platform(contents: Contents) -> str:
    """Return uv's name of an image's platform; empty if uv has none for it."""
    machine = platform.machine()
    libc = next((package.version for package in contents.debian if package.name == "libc6"), "")
    minor = re.match(r"2\.(\d{1,3})", libc)
    known = [version for version in _GLIBC if version <= int(minor[1] if minor else _GLIBC[-1])]
    return f"{machine}-manylinux_2_{known[-1]}" if known and machine in _MACHINES else ""


def _list_build(image: StoredImage, base: Base, has: Packages) -> Packages:
    """Return the packages that only the build of an image had, which the image lists.

    A list of its base comes first, of versions that no mirror may have any more, nor need have.
    """
    printed = _read_list(image.path)
    if isinstance(base, LocalImage):
        printed = printed.removeprefix(_read_list(base.path))
    lines = [match for match in map(_LISTED.fullmatch, printed.splitlines()) if match]
    apt = {line["name"]: line["version"] for line in lines if line["kind"] == " "}
    pip = {normalize_name(line["name"]): line["version"] for line in lines if line["kind"] != " "}
    stay = {(normalize_name(name), version) for name, version in has.pip.items()}
    return Packages(
        apt={name: version for name, version in apt.items() if name not in has.apt},
        pip=dict(item for item in sorted(pip.items()) if item not in stay),
    )


def _read_list(path: str) -> str:
    """Return an image's list of what only its build had; empty if it has none.

    Raises:
        BuildError: The image does not run.
    """
    words = ["/bin/sh", "-c", f"[ ! -e {BUILD_PACKAGES} ] || cat {BUILD_PACKAGES}"]
    done = run_in_image(path, words, timeout=_PATIENCE)
    if not done.ok:
        reason = "the image could not list the packages of its build"
        raise BuildError(reason, place=path, details=done.tail())
    return done.stdout
