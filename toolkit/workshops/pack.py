"""Pack a workshop into one file, sign it with a key in PEM, and publish it as static pages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from toolkit import reports, shell
from toolkit.errors import ConfigError, SignatureError
from toolkit.files import read_text, temporary_beside, write_atomically, written_whole
from toolkit.images.lockfile.files import read_lock
from toolkit.images.store import store
from toolkit.images.store.provenance import hash_lock
from toolkit.images.store.signatures import read_private
from toolkit.model.base import to_json
from toolkit.shell import Progress
from toolkit.workshops import archive
from toolkit.workshops.exercises import copy_folder, load, source_of
from toolkit.workshops.model import (
    CONTENTS,
    PACKED,
    SIGNATURE,
    WORKSHOP,
    Contents,
    Exercise,
    Workshop,
)

_WORDS = {"en": ("Join", "Exercises", "Run it"), "ko": ("참가하기", "실습", "실행")}  # of the guide
_SQUASHFS = (
    *("-noappend", "-no-progress", "-quiet", "-comp", "zstd", "-all-root", "-no-xattrs"),
    *("-all-time", "0", "-mkfs-time", "0", "-processors", "1"),
)


def pack(
    folder: Path,
    target: Path,
    progress: Progress,
    *,
    key: Path | None = None,
    results: str | None = None,
) -> Contents:
    """Pack the workshop of a folder; equal workshops give equal bytes.

    Args:
        folder: of the workshop.
        target: the packed file.
        progress: shows the steps.
        key: a private key that signs it.
        results: the directory of results, in place of the workshop's own; None: that one.

    Raises:
        ConfigError: ``workshop.toml`` is broken.
        ImageMissingError: an image is not built.
        SignatureError: an image is not the one of its lock.
        NeedsInstallError: mksquashfs or OpenSSL is missing.
    """
    workshop, name = load(folder), folder.resolve().name
    if results is not None:
        workshop = replace(workshop, results=results)
    with temporary_beside(target) as scratch:
        progress.begin("exercises", f"{len(workshop.exercises)} of {name}")
        sources: dict[str, archive.Source] = {WORKSHOP: folder / WORKSHOP}
        sources |= _exercises(folder, workshop, scratch)
        guide = pages(folder, workshop, PACKED)
        sources |= {f"guide/{page}": text.encode() for page, text in guide.items()}
        progress.begin("data", ", ".join(workshop.data) or "none")
        sources |= dict(_data(folder, workshop, scratch))
        progress.begin("images", ", ".join(workshop.images) or "none")
        sources |= _images(folder, workshop)
        described = {path: archive.describe(sources[path]) for path in sorted(sources)}
        contents = Contents(name=name, workshop=workshop, files=described)
        listed = to_json(contents).encode()
        head: dict[str, archive.Source] = {CONTENTS: listed}
        if key is not None:
            head[SIGNATURE] = sign(listed, key)
        progress.begin("pack", str(target))
        archive.write(target, head | {path: sources[path] for path in described}, described)
        progress.end()
    return contents


def _exercises(folder: Path, workshop: Workshop, scratch: Path) -> dict[str, archive.Source]:
    for exercise in workshop.exercises:
        copied = scratch / "exercises" / exercise.name
        copy_folder(source_of(folder, exercise), copied)
        for page in copied.glob("*.md"):
            written = page.read_bytes().decode(errors="surrogateescape")
            renamed = _renamed(written, exercise, workshop)
            page.write_bytes(renamed.encode(errors="surrogateescape"))
    return {
        str(path.relative_to(scratch)): path
        for path in (scratch / "exercises").rglob("*")
        if path.is_file()
    }


def _data(folder: Path, workshop: Workshop, scratch: Path) -> Iterator[tuple[str, archive.Source]]:
    for name, directory in workshop.data.items():
        made = scratch / f"{name}.sqfs"
        source = (folder / Path(directory).expanduser()).resolve()
        shell.run(["mksquashfs", source, made, *_SQUASHFS])
        yield f"data/{name}.sqfs", made


def _images(folder: Path, workshop: Workshop) -> dict[str, archive.Source]:
    """Return the images to pack, with their locks."""
    files: dict[str, archive.Source] = {}
    for name, lock_file in workshop.images.items():
        image = store.find(name)
        built_from = image.manifest.locked if image.manifest else ""
        if lock_file and built_from != hash_lock(read_lock(folder / lock_file)):
            raise SignatureError(
                f"the image {name} was not built from {lock_file}",
                place=image.path,
                next_step=f"copy {lock_file} to the recipe's lock, then: "
                f"toolkit image build {name} --locked",
            )
        files[f"images/{name}.sif"] = Path(image.path)
        if lock_file:
            files[f"locks/{name}.lock"] = folder / lock_file
    return files


def pages(folder: Path, workshop: Workshop, join: str) -> dict[str, str]:
    """Return the guide as pages of HTML: file name -> text.

    HTML in a text is shown as it is written, links lead to web pages only, and there are no
    images: a page requests nothing from outside.

    Args:
        folder: of the workshop.
        workshop: the workshop.
        join: the word after ``toolkit workshop join``.
    """
    files = {language: f"{language}.html" for language in workshop.language}
    files |= dict.fromkeys(workshop.language[:1], "index.html")
    return {
        files[language]: reports.render(
            "guide.html.j2",
            language=language,
            title=workshop.title_in(language),
            date=workshop.date,
            words=_WORDS.get(language, _WORDS["en"]),
            others=[(file, other) for other, file in files.items() if other != language],
            join=join,
            sections=[_section(folder, each, workshop, language) for each in workshop.exercises],
        )
        for language in workshop.language
    }


def _renamed(text: str, exercise: Exercise, workshop: Workshop) -> str:
    """Return a text with the folders that participants have: ``01-ddp`` for ``jobs/digits-ddp``."""
    every = (*reversed(workshop.exercises), exercise)
    names = {f"jobs/{each.folder.rpartition('/')[2]}": each.name for each in every}
    return re.sub(r"(?<![\w./-])jobs/[\w-]+", lambda match: names.get(match[0], match[0]), text)


def _section(
    folder: Path, exercise: Exercise, workshop: Workshop, language: str
) -> dict[str, object]:
    source = source_of(folder, exercise)
    own = exercise.text.get(language)
    path = folder / own if own else source / "README.md"
    text = read_text(path) if path.is_file() else ""
    verb = "run" if (source / "job.toml").is_file() else "notebook"
    html = reports.markup(to_html(_renamed(text, exercise, workshop)))
    return {"name": exercise.name, "text": html, "command": f"toolkit {verb} {exercise.name}"}


def publish(
    folder: Path, packed: Path, digest: str, directory: Path, address: str
) -> tuple[str, ...]:
    """Write the guide, the packed workshop and its checksum as static pages.

    Args:
        folder: of the workshop.
        packed: the packed workshop.
        digest: its SHA-256.
        directory: of the pages; files of other names in it stay.
        address: where the pages will be; empty: unknown.
    """
    workshop = load(folder)
    directory.mkdir(parents=True, exist_ok=True)
    written = pages(folder, workshop, f"{address.rstrip('/')}/{PACKED}" if address else PACKED)
    written["SHA256SUMS"] = f"{digest}  {PACKED}\n"
    for name, text in written.items():
        write_atomically(directory / name, text)
    if packed.resolve() != (directory / PACKED).resolve():
        with written_whole(directory / PACKED) as made:
            shutil.copyfile(packed, made)
            made.chmod(0o644)
    return (*written, PACKED)


def to_html(text: str) -> str:
    """Return Markdown as HTML whose headings are below those of an exercise."""
    from markdown_it import MarkdownIt  # most commands show no guide

    parser = MarkdownIt("commonmark", {"html": False}).disable("image")
    parser.validateLink = lambda url: url.startswith(  # type: ignore[method-assign]
        ("http://", "https://")
    )
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    return str(parser.renderer.render(tokens, parser.options, {}))


def sign(data: bytes, key: Path) -> bytes:
    """Return the signature of data with a private key.

    Raises:
        ConfigError: the key cannot be used.
        NeedsInstallError: OpenSSL is not installed.
    """
    read_private(key)
    done, signature = _openssl(data, b"", "-sign", key, "-out")
    if not done.ok:
        raise ConfigError(
            "OpenSSL cannot sign with this key",
            place=str(key),
            details=done.tail(2),
            next_step="openssl ecparam -name prime256v1 -genkey -noout -out KEY.pem",
        )
    return signature


def verifier(key: Path) -> archive.Verify:
    """Return a function that raises SignatureError unless a public key's owner signed a list."""

    def verify(data: bytes, signature: bytes) -> None:
        if not signature or not _openssl(data, signature, "-verify", key, "-signature")[0].ok:
            raise SignatureError(
                "the workshop is not signed by this key, or was changed since",
                place=str(key),
                next_step="ask the instructor for the file and the key again",
            )

    return verify


def _openssl(data: bytes, signature: bytes, *options: str | Path) -> tuple[shell.Result, bytes]:
    """Run OpenSSL with the options before a signature; return its result and the signature."""
    with TemporaryDirectory() as place:
        content, signed = Path(place, "content"), Path(place, "signature")
        content.write_bytes(data)
        signed.write_bytes(signature)
        argv = ["openssl", "dgst", "-sha256", *options, signed, content]
        return shell.run(argv, timeout=60, check=False), signed.read_bytes()
