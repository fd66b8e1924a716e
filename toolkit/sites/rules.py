"""Rules of a site for the comment of a job and the types of its GPUs. Pure.

The user writes ``a100:4``, a site file ``A100 NVLink``, and Slurm has its own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolkit.errors import UsageError, nearest
from toolkit.model.case import Case
from toolkit.model.site import CommentRule, Facts, Site
from toolkit.quoting import alternatives


def comment_problem(rule: CommentRule, value: str | None) -> str | None:
    """Return what is wrong with a comment, with the nearest valid word; None if it is valid."""
    if not value:
        return "this site requires a comment" if rule.required else None
    if not rule.fields:
        return _unknown_word(value, rule.words, "is not among this site's comments")
    given: dict[str, str] = {}
    for part in value.split(";"):
        key, sign, text = part.partition("=")
        if not sign:
            return f"{part!r} is not <key>=<value>; this site wants {comment_form(rule)}"
        given[key] = text
    for key, allowed in rule.fields.items():
        if key not in given:
            return f"{key}= is missing; this site wants {comment_form(rule)}"
        if unknown := _unknown_word(
            given[key], allowed, f"is not among this site's values of {key}"
        ):
            return unknown
    names = (_unknown_word(key, rule.fields, "is no key of this site's comments") for key in given)
    return next(filter(None, names), None)


def _unknown_word(word: str, allowed: Iterable[str], text: str) -> str | None:
    """Return that a word is not among those that are allowed; None if it is, or if all are."""
    words = sorted(allowed)
    if not words or word in words:
        return None
    close = nearest(word, words)
    return f"{word!r} {text}; " + (f"close: {close}" if close else f"one of {', '.join(words)}")


def comment_form(rule: CommentRule) -> str:
    """Return the format of a comment: ``field=<field>;appl=<appl>``, or the allowed words."""
    return ";".join(f"{key}=<{key}>" for key in rule.fields) or " | ".join(rule.words)


def comment_example(rule: CommentRule) -> str:
    """Return a comment that the rule allows: the site's own example, or the first allowed words."""
    if rule.example and comment_problem(rule, rule.example) is None:
        return rule.example
    first = (f"{key}={allowed[0] if allowed else key}" for key, allowed in rule.fields.items())
    return ";".join(first) or next(iter(rule.words), "toolkit")


def short_name(gpu: str | None) -> str:
    """Return the type in a description of GPUs: ``v100`` of ``V100 NVLink``."""
    return re.sub(r"[^a-z0-9_.-]", "", (gpu or "").split(" ")[0].lower())


def resolve_gpu_type(case: Case) -> tuple[str, UsageError | None]:
    """Return the type of a job's GPUs as Slurm names it.

    Slurm's own answer takes precedence over the site file. If Slurm has no types for the GPUs, but
    the file says that all of the partition are of the type that the job requests, the partition
    decides.

    Returns:
        The type, empty if any GPU will do or Slurm has no types there; and the error if the cluster
        is known not to have it.
    """
    job, site, partition = case.job, case.site, case.partition
    wanted = job.gpu_type
    if not wanted:
        return "", None
    in_slurm = {key.lower(): value for key, value in site.gpu_types.items()}
    named = in_slurm.get(wanted.lower(), wanted)
    type_in_file = short_name(case.written.gpu) if case.written else ""
    if partition is not None and partition.gpus_by_type:
        for name in partition.gpus_by_type:
            if name.lower() in (wanted.lower(), named.lower()):
                return name, None
        known = list(partition.gpus_by_type)
    elif type_in_file == wanted.lower():
        return "" if partition is not None and partition.gpus else named, None
    elif type_in_file:
        known = [type_in_file]
    elif partition is not None and partition.gpus:
        if not named:
            return "", None
        cause = f"Slurm has no types for the GPUs of partition {partition.name}"
        step = f"{job.gpu_option} without the type"
        return wanted, UsageError(cause, place=job.gpu_option, next_step=step)
    else:
        known = known_types(site, case.facts)
        if not known or wanted.lower() in map(str.lower, known):
            return named, None
    return named, _unknown(case, known)


def known_types(site: Site, facts: Facts) -> list[str]:
    """Return the types of all partitions, Slurm's first."""
    live = [name for partition in facts.partitions for name in partition.gpus_by_type]
    described = [
        short_name(partition.gpu) for partition in site.partitions.values() if partition.gpu
    ]
    return list(dict.fromkeys((*live, *site.gpu_types, *described)))


def _partitions_with(wanted: str, site: Site, facts: Facts) -> list[str]:
    """Return the partitions that have GPUs of a type."""
    live = [
        partition.name
        for partition in facts.partitions
        if wanted.lower() in map(str.lower, partition.gpus_by_type)
    ]
    described = [
        name
        for name, partition in site.partitions.items()
        if partition.batch and short_name(partition.gpu) == wanted.lower()
    ]
    return live or described


def _unknown(case: Case, known: list[str]) -> UsageError:
    job, name = case.job, case.partition_name
    place = f"partition {name}" if name else f"site {case.site.name}"
    elsewhere = _partitions_with(job.gpu_type, case.site, case.facts)
    if elsewhere:
        step = f"with {job.gpu_type}: {alternatives('--partition', elsewhere)}"
    else:
        step = f"one of {', '.join(sorted(known))}"
    return UsageError(
        f"{place} has no GPUs of type {job.gpu_type!r}",
        place=job.gpu_option,
        choices=() if elsewhere else known,
        value=job.gpu_type,
        next_step=step,
    )
