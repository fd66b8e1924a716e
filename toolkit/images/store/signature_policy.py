"""The check of the signature that a job demands of its image."""

from __future__ import annotations

from pathlib import Path

from toolkit.errors import SignatureError, ToolkitError, UsageError
from toolkit.images.store.keys import pgp_fingerprint
from toolkit.model.job import Job
from toolkit.trusted_files import require_trusted


def signature(job: Job, image: str, cwd: Path, folder: Path, origin: str) -> list[ToolkitError]:
    """Return what is wrong with an image's signature; nothing where none is demanded.

    Args:
        job: says whether a signature is demanded, and by which key.
        image: path of the SIF; all of it is read.
        cwd: current working directory. A key is searched there, in ``folder`` and in the parents.
        folder: directory of the script.
        origin: of the key: a file that neither the command line nor the job names must be trusted.
    """
    if not job.require_signed:
        return []
    if not job.signature_key:
        return [
            UsageError(
                "a signed image is demanded, but no key is named",
                place="require_signed",
                next_step="--signature-key FILE",
            ),
        ]
    from toolkit.images.store.signatures import verify

    try:
        verify(Path(image), _key(job.signature_key, cwd, folder, origin))
    except ToolkitError as error:
        error.place = (
            "--image" if isinstance(error, SignatureError) else error.place or "--signature-key"
        )
        return [error]
    return []


def _key(key: str, cwd: Path, folder: Path, origin: str) -> str:
    """Return the fingerprint, or the path of the key's file.

    Raises:
        UntrustedError: the file was found by searching, and another user could have put it there.
    """
    if pgp_fingerprint(key):
        return key
    candidates = [directory / Path(key).expanduser() for directory in (cwd, folder, *cwd.parents)]
    path = next((path for path in candidates if path.is_file()), candidates[0])
    is_named = origin == "--signature-key" or (origin == "job.toml" and path.parent == folder)
    if path.is_file() and not is_named:
        require_trusted(path)
    return str(path)
