"""The commands that check, sign, share and remove images: `toolkit image verify`, `push`, ..."""

from __future__ import annotations

import time
from pathlib import Path

import click

from toolkit.cli import console
from toolkit.cli.shared import AGE, gpus_option, json_option, node_job_options, pattern, site_option
from toolkit.doctor.node_jobs import rank_runner
from toolkit.errors import BuildError, ForbiddenError
from toolkit.images.registry import copies, transfer
from toolkit.images.store import prune as pruning
from toolkit.images.store import store
from toolkit.images.store.cache import Cache
from toolkit.images.store.signatures import sign as sign_image
from toolkit.images.store.signatures import verify as verify_signed
from toolkit.images.verify.case import local_case
from toolkit.images.verify.verdicts import save, verdicts
from toolkit.planning.settings import find_site
from toolkit.runs.removal import holds_image
from toolkit.shell import require_apptainer
from toolkit.units import counted, human_age, human_size


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
@json_option
def verify(
    name: str,
    nodes: int | None,
    gpus: int | None,
    site: str | None,
    as_json: bool,
    **job_options: str | None,
) -> None:
    """Verify an image, and that it fits the cluster.

    The checks are of imports, Horovod's build, sums over ranks, and the cluster. NAME is an
    image of yours, of the site, or any SIF. Ranks sum by MPI, Gloo and NCCL. What could not be
    checked here is listed with the reason; the manifest of an image of yours keeps the results.
    The exit code is 74 if a check failed.

    \b
    Examples:
      toolkit image verify pytorch_cpu
      toolkit image verify pytorch_22.03 --nodes 2 --gpus-per-node 4 --partition cas_v100_4
      toolkit image verify /apps/images/pytorch.sif --json
    """
    image = store.find(name)
    require_apptainer()
    offer, reason = find_site(site or "auto", required=bool(site or nodes))
    settings = {name: value for name, value in job_options.items() if value}
    run_ranks = rank_runner(image.path, site or "auto", nodes or 0, gpus or 0, settings)
    case = local_case(
        image,
        site=offer,
        no_site=reason,
        nodes=nodes or 0,
        gpus=gpus or 0,
        run_ranks=run_ranks if nodes else None,
    )
    with console.Steps() as steps:
        steps.begin("verify", image.path)
        made = verdicts(
            case, lambda verdict: steps.say(verdict.outcome, f"{verdict.name}: {verdict.detail}")
        )
        save(image, made, steps, case)
    rows = [(verdict.name, verdict.outcome, verdict.detail) for verdict in made]
    data = {"path": image.path, "verdicts": made}
    console.listing(("CHECK", "RESULT", "DETAIL"), rows, data, as_json=as_json)
    failed = [verdict.name for verdict in made if verdict.outcome == "failed"]
    if failed:
        cause = f"{image.name} did not pass {len(failed)} of {len(rows)} checks"
        raise BuildError(cause, place=", ".join(failed))


@click.command("sign")
@click.argument("name")
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    required=True,
    help="A private key in PEM, without a passphrase: RSA, ECDSA or Ed25519.",
)
@click.option("--replace", is_flag=True, help="Replace the signatures that the image has already.")
@json_option
def sign(name: str, key: Path, replace: bool, as_json: bool) -> None:
    """Sign an image with a key.

    Those who have the public key can then verify that the image is unchanged.

    \b
    Examples: a key, and its public part, which is all that others need:
      openssl ecparam -name prime256v1 -genkey -noout -out key.pem
      openssl pkey -in key.pem -pubout -out key.pub
      toolkit image sign pytorch_cpu --key key.pem
      toolkit image verify-signature pytorch_cpu --key key.pub
    With `require_signed = true` and `signature_key = "key.pub"` in its job.toml or toolkit.toml, a
    job runs only images that are signed by this key.
    """
    image = store.find(name)
    with console.Steps() as progress:
        made = sign_image(image, key, progress, replace=replace)
    console.say("signed", image.path)
    data = {"path": image.path, "signature": made}
    console.result(data, made.fingerprint, as_json=as_json)


@click.command("verify-signature")
@click.argument("name")
@click.option(
    "--key",
    metavar="FILE",
    required=True,
    help="A public key in PEM.",
)
@json_option
def verify_signature(name: str, key: str, as_json: bool) -> None:
    """Verify that an image is signed by a key and unchanged since.

    The exit code is 88 if not.

    \b
    Example:
      toolkit image verify-signature pytorch_cpu --key key.pub
    """
    image = store.find(name)
    signature = verify_signed(Path(image.path), key)
    console.say("verified", f"{image.path}: all its objects are signed and unchanged")
    data = {"path": image.path, "signature": signature}
    console.result(data, signature.fingerprint, as_json=as_json)


@click.command("remove")
@click.argument("name")
@click.option("--force", is_flag=True, help="Remove it also if a run that has not ended uses it.")
def remove(name: str, force: bool) -> None:
    """Remove an image of yours.

    The logs of its builds go with it.

    \b
    Example:
      toolkit image remove pytorch_cpu
    """
    path = store.images_directory() / f"{name.removesuffix('.sif')}.sif"
    if not path.exists():
        path = Path(store.find(name).path)
    if path.parent != store.images_directory():
        raise ForbiddenError(
            f"{path} is not among your own images",
            place=str(path),
            next_step=f"rm {path}, if it is yours",
        )
    freed = pruning.remove(path, force=force, holds=holds_image)
    console.say("removed", f"{path.name}: {human_size(freed)}")


@click.command("prune")
@click.option(
    "--older-than", metavar="AGE", type=AGE, help="Images that were built longer ago: 30d, 12h, 8w."
)
@click.option(
    "--unused-for",
    metavar="AGE",
    type=AGE,
    help="Images that no run used for so long. With --older-than, both must hold.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
def prune(older_than: float | None, unused_for: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove old or unused images, and what killed builds left.

    Without an age no image is removed, and an image of a run that has not ended, or that another
    process works on, is never removed. For the cache of builds, see toolkit image cache.

    \b
    Examples:
      toolkit image prune --unused-for 30d --dry-run
      toolkit image prune --older-than 90d --unused-for 30d
    """
    candidates = pruning.prune(
        store.images_directory(),
        older_than=older_than,
        unused_for=unused_for,
        holds=holds_image,
        dry_run=dry_run,
    )
    freed = sum(candidate.size for candidate in candidates if not candidate.reason_to_keep)
    done = "would be removed" if dry_run else "removed"
    rows = [
        (
            candidate.name,
            human_size(candidate.size),
            f"kept: {candidate.reason_to_keep}" if candidate.reason_to_keep else done,
            candidate.why,
        )
        for candidate in candidates
    ]
    data = {"freed": freed, "dry_run": dry_run, "found": candidates}
    console.listing(("NAME", "SIZE", "", "WHY") if rows else (), rows, data, as_json=as_json)
    console.say("would free" if dry_run else "freed", human_size(freed))


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove all of it; the images are kept.")
@json_option
def cache(clear: bool, as_json: bool) -> None:
    """Show or clear what builds reuse.

    These are bases, what steps changed, and compiled wheels. It is beside the images, in .cache.
    Without it the next build of an image takes as long as the first.

    \b
    Examples:
      toolkit image cache
      toolkit image cache --clear
    """
    cache = Cache(store.images_directory())
    entries = cache.entries()
    size = human_size(sum(entry.note.size for entry in entries))
    if clear:
        cache.clear()
        console.say("removed", f"{counted(len(entries), 'entry')}, {size}")
        return
    now = time.time()
    rows = [
        (
            entry.kind,
            entry.note.about or "-",
            human_size(entry.note.size),
            f"{human_age(now - entry.used)} ago" if now - entry.used >= 3600 else "within the hour",
            entry.key[:12],
        )
        for entry in entries
    ]
    header = ("KIND", "OF", "SIZE", "LAST USED", "KEY")
    console.listing(header, rows, entries, as_json=as_json)
    console.say("total", f"{size} in {cache.directory}")


@click.command("push")
@click.argument("name")
@click.argument("target", metavar="oras://REGISTRY/PATH:TAG")
def push(name: str, target: str) -> None:
    """Push an image to a registry.

    The manifest and the bill of materials are in it. The login is that of Docker's or Apptainer's
    own configuration. Plain HTTP is used only for a registry on this machine.

    \b
    Example:
      toolkit image push pytorch_cpu oras://registry.site/images/pytorch_cpu:1
    """
    with console.Steps() as progress:
        place = transfer.push(store.find(name), target, progress)
    console.say("pushed", f"get it: toolkit image pull oras://{place}")


@click.command("pull")
@click.argument("origin", metavar="FROM")
@click.option("--name", help="Name of the image here (default: its name where it was built).")
@click.option("--force", is_flag=True, help="Replace an image of that name.")
def pull(origin: str, name: str | None, force: bool) -> None:
    """Pull an image from a registry.

    From oras:// comes an image that `push` put there; from docker://, any image, which is converted
    once before jobs run it. The image appears when it is complete.

    \b
    Examples:
      toolkit image pull oras://registry.site/images/pytorch_cpu:1
      toolkit image pull docker://nvcr.io/nvidia/pytorch:25.06-py3 --name pytorch
    """
    with console.Steps() as progress:
        path = transfer.pull(origin, name, progress, force=force)
    console.document(str(path))


@click.command("copy")
@click.argument("name")
@click.argument("target", metavar="[HOST:]DIRECTORY")
@click.option(
    "--mode",
    metavar="MODE",
    type=pattern("an octal mode", "[0-7]{1,4}", "644", lambda match: int(match[0], 8)),
    default="644",
    show_default=True,
    help="Permissions of the copy, octal: 640 for the group, 644 for all.",
)
def copy(name: str, target: str, mode: int) -> None:
    """Copy an image to a directory, here or on another machine.

    The manifest is in it. Another machine is reached by ssh.

    \b
    Examples:
      toolkit image copy pytorch_cpu /apps/images
      toolkit image copy pytorch_cpu login.site:/scratch/me/images --mode 640
    """
    with console.Steps() as progress:
        path = copies.copy(store.find(name), target, progress, mode=mode)
    console.document(path)
