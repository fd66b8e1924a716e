"""`toolkit image lock`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("lock")
@click.argument("name")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Where to write it (default: beside the recipe).",
)
def command(name: str, output: Path | None) -> None:
    """Write down exactly what the image of a recipe was built from: NAME, or a path to a .toml file.

    \b
    The base by its digest, every package of Debian by its version, every package of Python by the hash of its file, and what only the build
    needs. Commit the lock; from then on this builds the same image, to the last byte of its file system, or says what is not to be had:
      toolkit image build NAME --locked
    """
    import time

    from toolkit.cli import console
    from toolkit.errors import ForbiddenError
    from toolkit.files import write_atomically
    from toolkit.images.lockfile.make import lock_path, make
    from toolkit.model.lock import to_toml

    path = output or lock_path(name)
    console.note(console.subject("locking", name))
    lock = make(name, int(time.time()))
    try:
        write_atomically(path, to_toml(lock))
    except OSError as error:
        raise ForbiddenError(
            f"the lock cannot be written: {error.strerror}",
            place=str(path),
            next_step="toolkit image lock ... --output FILE",
        ) from None
    console.note(
        console.subject(
            "locked",
            f"{len(lock.apt)} + {len(lock.apt_build)} packages of Debian, {len(lock.files)} files of Python",
        )
    )
    console.document(str(path))
