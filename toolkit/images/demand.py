"""What a job demands of who signed its image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import SignatureError, ToolkitError, UsageError
from toolkit.images.keys import pgp_fingerprint
from toolkit.model.job import Job


def signature(job: Job, image: str, directories: Sequence[Path]) -> list[ToolkitError]:
    """What is wrong with the signature of an image; nothing where none is demanded. Where one is, the whole image is read.

    Args:
        image: the path of the SIF.
        directories: that a key's path may be relative to, in order.
    """
    if not job.require_signed:
        return []
    if not job.signature_key:
        return [UsageError("a signed image is demanded, but not by whom", place="require_signed", next_step="--signature-key FILE")]
    from toolkit.images.builders.sign import verify

    try:
        verify(Path(image), _key(job.signature_key, directories))
    except ToolkitError as error:
        error.place = "--image" if isinstance(error, SignatureError) else error.place or "--signature-key"
        return [error]
    return []


def _key(key: str, directories: Sequence[Path]) -> str:
    if pgp_fingerprint(key):
        return key
    candidates = [directory / Path(key).expanduser() for directory in directories]
    return str(next((path for path in candidates if path.is_file()), candidates[0]))
