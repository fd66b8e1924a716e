"""The commands `toolkit image verify`, `check`, `sign` and `verify-signature`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.shared import gpus_option, json_option, node_job_options, site_option
from toolkit.doctor.node_jobs import find_site, rank_runner
from toolkit.errors import BuildError, UsageError
from toolkit.images.store.sign import sign as sign_image
from toolkit.images.store.signatures import verify as verify_signed
from toolkit.images.store.store import find
from toolkit.images.verify.case import VerifyOptions, local_case
from toolkit.images.verify.verdicts import check_again, save, verdicts
from toolkit.shell import require_apptainer


@click.command("verify")
@click.argument("name")
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    help="Also test sums over ranks on this many nodes of the cluster: short jobs, through Slurm.",
)
@gpus_option("GPUs on each of these nodes: a rank for each, by NCCL.")
@site_option("The cluster; default: the local one if it is up, else the Slurm on PATH.")
@node_job_options(minutes=10)
@click.option(
    "--key",
    help="A public key in PEM, or a PGP key: also verify the signature of the image by it.",
)
@json_option
def verify(
    name: str,
    nodes: int | None,
    gpus: int | None,
    site: str | None,
    key: str | None,
    as_json: bool,
    **job_options: str | None,
) -> None:
    """Verify an image, and that it fits the cluster.

    The checks are of labels, imports, Horovod's build, sums over ranks, and the cluster. NAME is an
    image of yours, of the site, or any SIF. Ranks sum by MPI, Gloo and NCCL. What could not be
    checked here is listed with the reason; the manifest keeps the results. The exit code is 74 if a
    check failed.

    \b
    Examples:
      toolkit image verify pytorch_cpu
      toolkit image verify pytorch_22.03 --nodes 2 --gpus-per-node 4 --partition cas_v100_4
      toolkit image verify /apps/images/pytorch.sif --json
    """
    image = find(name)
    require_apptainer()
    offer, reason = find_site(site or "auto", required=bool(site or nodes))
    settings = {name: value for name, value in job_options.items() if value}
    run_ranks = rank_runner(image.path, site or "auto", nodes or 0, gpus or 0, settings)
    case = local_case(
        image,
        site=offer,
        no_site=reason,
        options=VerifyOptions(nodes=nodes or 0, gpus=gpus or 0, key=key or ""),
        run_ranks=run_ranks if nodes else None,
    )
    with console.Steps() as steps:
        steps.begin("verify", image.path)
        made = verdicts(
            case, lambda verdict: steps.say(verdict.outcome, f"{verdict.name}: {verdict.detail}")
        )
        save(image, made, steps)
    rows = [(verdict.name, verdict.outcome, verdict.detail) for verdict in made]
    data = {"path": image.path, "verdicts": made}
    _show_and_judge(image.name, rows, data, as_json=as_json)


@click.command("check")
@click.argument("name")
@json_option
def check(name: str, as_json: bool) -> None:
    """Run the checks that are in an image again.

    Their results are recorded in the manifest. The exit code is 74 if one fails.

    \b
    Example:
      toolkit image check pytorch_cpu
    """
    image = find(name)
    if not as_json:
        console.say("checking", image.path)
    with console.Steps() as progress:
        checks = check_again(image, progress)
    rows = [(each.name, "passed" if each.passed else "failed", each.detail) for each in checks]
    _show_and_judge(image.name, rows, checks, as_json=as_json)


def _show_and_judge(
    image: str, rows: Sequence[tuple[str, str, str]], data: object, *, as_json: bool
) -> None:
    """Print the name, the outcome and the detail of each check.

    Raises:
        BuildError: a check failed.
    """
    console.result(data, console.table(("CHECK", "RESULT", "DETAIL"), rows), as_json=as_json)
    failed = [name for name, outcome, _ in rows if outcome == "failed"]
    if failed:
        raise BuildError(
            f"{image} did not pass {len(failed)} of {len(rows)} checks", place=", ".join(failed)
        )


@click.command("sign")
@click.argument("name")
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A private key in PEM, without a passphrase: RSA, ECDSA or Ed25519.",
)
@click.option(
    "--pgp",
    metavar="N",
    type=click.IntRange(0),
    help="A key of your PGP keyring, by its number in `apptainer key list --secret`.",
)
@click.option("--replace", is_flag=True, help="Replace the signatures that the image has already.")
@json_option
def sign(
    name: str,
    key: Path | None,
    pgp: int | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Sign an image with a key.

    Those who have the public key can then verify that the image is unchanged.

    \b
    Examples: a key, and its public part, which is all that others need:
      openssl ecparam -name prime256v1 -genkey -noout -out key.pem
      openssl pkey -in key.pem -pubout -out key.pub
      toolkit image sign pytorch_cpu --key key.pem
      toolkit image verify-signature pytorch_cpu --key key.pub
    A job runs signed images only with `require_signed = true` and `signature_key = "key.pub"` in
    its job.toml or toolkit.toml.
    """
    if (key is None) == (pgp is None):
        cause = "name one key: --key FILE, or --pgp N"
        raise UsageError(cause, place="--key", next_step="toolkit image sign --help")
    image = find(name)

    with console.Steps() as progress:
        made = sign_image(image, key, pgp or 0, progress, replace=replace)
    if as_json:
        console.out_json({"path": image.path, "signature": made})
        return
    console.say("signed", f"{image.path} by {made.signer or made.kind.upper()}")
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
    image = find(name)
    signature = verify_signed(Path(image.path), key)
    if as_json:
        console.out_json({"path": image.path, "signature": signature})
        return
    console.say("verified", f"{image.path}: all its objects are signed and unchanged")
    console.out(signature.fingerprint)
