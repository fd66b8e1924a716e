"""The commands `toolkit image sign` and `toolkit image verify-signature`."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.shared import json_option
from toolkit.errors import ConfigError, UsageError

SECTION = "Check and sign"


@click.command("sign")
@click.argument("name")
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A private key in PEM: RSA, ECDSA or Ed25519.",
)
@click.option(
    "--pgp",
    metavar="N",
    type=click.IntRange(0),
    help="A key of your PGP keyring, by its number in `apptainer key list --secret`.",
)
@click.option(
    "--passphrase-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Where the key's passphrase is; without it, you are asked.",
)
@click.option("--replace", is_flag=True, help="Drop the signatures that are there already.")
@json_option
def sign(
    name: str,
    key: Path | None,
    pgp: int | None,
    passphrase_file: Path | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Sign an image with a key.

    Those who have the public key can then verify that the image is unchanged.

    \b
    Examples: a key, and its public part, which is all that others need:
      openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -out key.pem
      openssl pkey -in key.pem -pubout -out key.pub
      toolkit image sign pytorch_cpu --key key.pem
      toolkit image verify-signature pytorch_cpu --key key.pub
    A job runs signed images only with `require_signed = true` and `signature_key = "key.pub"` in
    its job.toml or toolkit.toml.
    """
    from toolkit.images.store.sign import sign
    from toolkit.images.store.store import find

    if (key is None) == (pgp is None):
        raise UsageError(
            "name one key: --key FILE, or --pgp N",
            place="--key",
            next_step="toolkit image sign --help",
        )
    image = find(name)

    def ask(what: str) -> str:
        if passphrase_file is None:
            return str(click.prompt(f"passphrase of {what}", hide_input=True, err=True))
        try:
            return passphrase_file.read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the passphrase cannot be read: {error}", place=str(passphrase_file)
            ) from None

    with console.Steps() as progress:
        made = sign(image, key, pgp or 0, ask, progress, replace=replace)
    if as_json:
        console.out_json({"path": image.path, "signature": made})
        return
    console.note(console.subject("signed", f"{image.path} by {made.signer or made.kind.upper()}"))
    console.out(made.fingerprint)


@click.command("verify-signature")
@click.argument("name")
@click.option(
    "--key",
    metavar="FILE|FINGERPRINT",
    required=True,
    help="A public key in PEM, or a PGP key of your keyring.",
)
@json_option
def verify_signature(name: str, key: str, as_json: bool) -> None:
    """Verify that an image is signed by a key and unchanged since.

    The exit code is 88 if not.

    \b
    Example:
      toolkit image verify-signature pytorch_cpu --key key.pub
    """
    from toolkit.images.store.signatures import verify
    from toolkit.images.store.store import find

    image = find(name)
    signature = verify(Path(image.path), key)
    if as_json:
        console.out_json({"path": image.path, "signature": signature})
        return
    console.note(
        console.subject("verified", f"{image.path}: every object of it is signed, and unchanged")
    )
    console.out(signature.fingerprint)
