"""`toolkit image verify`."""

from __future__ import annotations

import click


@click.command("verify")
@click.argument("name")
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    help="Also have ranks on this many nodes of the cluster sum: short jobs, through Slurm.",
)
@click.option(
    "--gpus-per-node",
    "--gpus",
    "gpus",
    type=click.IntRange(min=1),
    help="GPUs on each of these nodes: a rank for each, by NCCL.",
)
@click.option(
    "--site", help="The cluster; default: the local one if it is up, else the Slurm on PATH."
)
@click.option("--partition", help="Partition of these jobs.")
@click.option("--time", "limit", default="10", show_default=True, help="Time limit of these jobs.")
@click.option("--comment", help="Slurm's comment, if the site requires one.")
@click.option(
    "--key",
    help="A public key in PEM, or a PGP key: tells whether the image is signed by it, and unchanged.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(
    name: str,
    nodes: int | None,
    gpus: int | None,
    site: str | None,
    partition: str | None,
    limit: str,
    comment: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Verify an image: labels, imports, Horovod's build, ranks that sum, and the cluster.

    NAME is an image of yours, of the site, or any SIF. Ranks sum by MPI, Gloo and NCCL. What could
    not be checked here is listed with the reason; the manifest keeps the results. The exit code is
    74 if a check failed.

    \b
    Examples:
      toolkit image verify pytorch_cpu
      toolkit image verify pytorch_22.03 --nodes 2 --gpus-per-node 4 --partition cas_v100_4
      toolkit image verify /apps/images/pytorch.sif --json
    """
    from toolkit.cli import console
    from toolkit.doctor.node_jobs import find_site, rank_runner
    from toolkit.errors import BuildError
    from toolkit.images.build.verification import record
    from toolkit.images.store.store import find
    from toolkit.images.verify.case import VerifyOptions, local_case
    from toolkit.images.verify.verdicts import verdicts
    from toolkit.shell import require_apptainer

    image = find(name)
    require_apptainer()
    offer, reason = find_site(site or "auto", required=bool(site or nodes))
    settings = {"partition": partition, "time": limit, "comment": comment}
    given = {key: value for key, value in settings.items() if value}
    run_ranks = rank_runner(image.path, site or "auto", nodes or 0, gpus or 0, given)
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
    record(image, made)
    if as_json:
        import msgspec

        console.out_json({"path": image.path, "verdicts": msgspec.to_builtins(made)})
    else:
        console.out(
            console.table(
                ("CHECK", "RESULT", "DETAIL"),
                [(verdict.name, verdict.outcome, verdict.detail) for verdict in made],
            )
        )
    failed = [verdict.name for verdict in made if verdict.outcome == "failed"]
    if failed:
        raise BuildError(
            f"{image.name} did not pass {len(failed)} of {len(made)} checks",
            place=", ".join(failed),
        )
