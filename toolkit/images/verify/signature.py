"""Who signed the image. Whether nobody changed it since can only be told with the key: `toolkit image verify-signature`."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, failed, passed, unchecked


def verify(case: Case) -> Answer:
    manifest = case.image.manifest
    if case.asked.key:
        from toolkit.errors import ToolkitError
        from toolkit.images.store.sign import verify as check

        try:
            found = check(case.path, case.asked.key)
        except ToolkitError as error:
            return failed(error.cause)
        return passed(f"signed by {found.signer or found.fingerprint}, and unchanged since")
    if manifest and manifest.signatures:
        by = ", ".join(one.signer or one.fingerprint[:16] for one in manifest.signatures)
        return unchecked(f"signed by {by}; --key tells whether it is unchanged")
    return unchecked("nobody is known to have signed it")
