"""Site files of clusters, and their rules for the comment of a job and the types of its GPUs.

Those in this directory (``<name>.toml``) are shipped; the user's own are in
``~/.config/toolkit/sites``. Of GPUs, the user writes ``a100:4``, a site file ``A100 NVLink``, and
Slurm has its own names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from toolkit import config
from toolkit.errors import ConfigError, UnknownSiteError, UsageError, nearest
from toolkit.files import read_toml
from toolkit.model.base import toml_value
from toolkit.model.case import Case
from toolkit.model.job import Project
from toolkit.model.site import CommentRule, Site
from toolkit.quoting import alternatives


def directories() -> tuple[Path, ...]:
    """Return the directories of site files: the user's own, the machine's, the shipped ones."""
    places = (config.user_directory(), config.machine_directory(), config.package_directory(""))
    return tuple(place / "sites" for place in places)


def names() -> tuple[str, ...]:
    """Return the names of all known sites, sorted."""
    return tuple(
        sorted({path.stem for directory in directories() for path in directory.glob("*.toml")})
    )


def load(name: str, place: str = "--site", *, within: tuple[str, ...] = ()) -> Site:
    """Read a site, with the site that it extends.

    Args:
        name: of the site.
        place: where the user names it, for the error.
        within: the sites that extend it.

    Raises:
        UnknownSiteError: with the nearest name.
        ConfigError: its file is broken, or sites extend each other in a circle.
    """
    path = path_of(name, place)
    if name in within:
        cause = f"sites extend each other in a circle: {' -> '.join((*within, name))}"
        raise ConfigError(cause, place=place)
    return _extended(read_toml(path, Site), path, (*within, name))


def path_of(name: str, place: str = "--site") -> Path:
    """Return the file of a site; ``place`` is where the user names it.

    Raises:
        UnknownSiteError: with the nearest name.
    """
    for directory in directories():
        path = directory / f"{name}.toml"
        if path.parent == directory and path.is_file():
            return path
    known = names()
    raise UnknownSiteError(
        f"there is no site {name!r}",
        place=place,
        choices=known,
        value=name,
        next_step=f"one of auto, {', '.join(known)}",
    )


def from_file(path: Path) -> Site:
    """Read a site from a file at any path, with the site that it extends.

    Raises:
        ConfigError: it is broken.
        UnknownSiteError: it extends a site that does not exist.
    """
    return _extended(read_toml(path, Site, named=True), path)


def _extended(site: Site, path: Path, within: tuple[str, ...] = ()) -> Site:
    """Return a site with the values of the site that it extends.

    Tables are joined key by key; every other value is replaced as a whole.
    """
    if site.extends is None:
        return site
    base = load(site.extends, f"{path}, key extends", within=within)
    own = {}
    for field in fields(Site):
        value, before = getattr(site, field.name), getattr(base, field.name)
        is_table = field.default_factory is not NODEFAULT
        if is_table and isinstance(value, dict):
            own[field.name] = {**before, **value}
        elif value != field.default:
            own[field.name] = value
    return replace(base, **own)


def image_directories(cwd: Path) -> tuple[Path, ...]:
    """Return the directories with images of other users, in the order of search.

    They are those under ``images`` in the settings, and those of the site that is chosen there.

    Raises:
        ConfigError, UntrustedError: of a file with settings.
        UnknownSiteError: the chosen site does not exist.
    """
    names: list[str] = []
    site = ""
    for file in config.settings_files(cwd):
        project = read_toml(file.path, Project)
        names = [*project.images, *names]
        site = project.site or site
    site = os.environ.get("TOOLKIT_SITE") or site
    if site and site != "auto":
        names += load(site).images
    directories = (Path(os.path.expandvars(name)).expanduser() for name in names)
    return tuple(dict.fromkeys(directories))


def chosen(text: str, name: str | None) -> str:
    """Return the text of the file with ``site = NAME``, and otherwise unchanged.

    If ``name`` is None, the key is removed.
    """
    lines = text.splitlines()
    top = [*takewhile(lambda line: not line.lstrip().startswith("["), lines)]
    others = [line for line in top if not re.match(r"\s*site\s*=", line)] + lines[len(top) :]
    row = [f"site = {toml_value(name)}"] if name is not None else []
    return "".join(f"{line}\n" for line in (*row, *others))


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
    site, partition, wanted = case.site, case.partition, case.job.gpu_type.lower()
    if not wanted:
        return "", None
    in_slurm = {key.lower(): value for key, value in site.gpu_types.items()}
    named = in_slurm.get(wanted, case.job.gpu_type)
    in_file = short_name(case.written.gpu) if case.written else ""
    if partition is not None and partition.gpus_by_type:
        known = list(partition.gpus_by_type)
        same = (name for name in known if name.lower() in (wanted, named.lower()))
        if name := next(same, ""):
            return name, None
    elif in_file == wanted:
        return "" if partition is not None and partition.gpus else named, None
    elif in_file:
        known = [in_file]
    elif partition is not None and partition.gpus:
        if not named:
            return "", None
        return case.job.gpu_type, UsageError(
            f"Slurm has no types for the GPUs of partition {partition.name}",
            place=case.job.gpu_option,
            next_step=f"{case.job.gpu_option} without the type",
        )
    else:  # the types of all partitions, Slurm's first
        known = [name for each in case.facts.partitions for name in each.gpus_by_type]
        known += [*site.gpu_types, *(short_name(each.gpu) for each in site.partitions.values())]
        known = [*dict.fromkeys(filter(None, known))]
        if not known or wanted in map(str.lower, known):
            return named, None
    return named, _unknown_type(case, known)


def _unknown_type(case: Case, known: list[str]) -> UsageError:
    wanted, name = case.job.gpu_type.lower(), case.partition_name
    live = case.facts.partitions
    elsewhere = [each.name for each in live if wanted in map(str.lower, each.gpus_by_type)] or [
        other
        for other, each in case.site.partitions.items()
        if each.batch and short_name(each.gpu) == wanted
    ]
    step = f"one of {', '.join(sorted(known))}"
    if elsewhere:
        step = f"with {case.job.gpu_type}: {alternatives('--partition', elsewhere)}"
    return UsageError(
        f"{f'partition {name}' if name else f'site {case.site.name}'} "
        f"has no GPUs of type {case.job.gpu_type!r}",
        place=case.job.gpu_option,
        choices=() if elsewhere else known,
        value=case.job.gpu_type,
        next_step=step,
    )
