"""`toolkit image verify-signature`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("verify-signature")
@click.argument("name")
@click.option(
    "--key",
    metavar="FILE|FINGERPRINT",
    required=True,
    help="A public key in PEM, or a PGP key of your keyring.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(name: str, key: str, as_json: bool) -> None:
    """Verify that an image is signed by a key and unchanged since; exit code 88 if not."""
    from toolkit.cli import console
    from toolkit.images.store.sign import verify
    from toolkit.images.store.store import find

    image = find(name)
    signature = verify(Path(image.path), key)
    if as_json:
        import msgspec

        console.out_json({"path": image.path, "signature": msgspec.to_builtins(signature)})
        return
    console.note(
        console.subject("verified", f"{image.path}: every object of it is signed, and unchanged")
    )
    console.out(signature.fingerprint)
