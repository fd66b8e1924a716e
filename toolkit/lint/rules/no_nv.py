"""Containers that do not get the GPUs which the job has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.lint.calls import call_at
from toolkit.lint.model import Context, Finding, Rule
from toolkit.lint.script import Script

RULE = Rule(
    "no-nv",
    "warning",
    "the container has no driver of the GPUs: torch.cuda.is_available() is False, and training goes on on the CPU",
    "Apptainer User Guide, GPU Support",
    "apptainer exec --nv image.sif ... (for AMD: --rocm)",
)
_STARTED = re.compile(
    r"(?<![\w./-])(?P<program>(?:[\w.~-]{0,64}/){0,16}(?:singularity|apptainer))(?=[ \t])"
)
_ACTION = re.compile(r"[ \t](?:exec|run|shell)[ \t]")
_GIVEN = re.compile(r"--nv\b|--rocm\b|--nvccli\b|(?:APPTAINER|SINGULARITY)_(?:NV|NVCCLI|ROCM)=")
_IMAGES = (".sif", ".simg", ".img")
_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")


def check(script: Script, context: Context) -> Iterator[Finding]:
    """Find a container without ``--nv`` in a job with GPUs, unless the script names the option somewhere."""
    del context
    if not _has_gpus(script) or any(_GIVEN.search(command.text) for command in script.commands):
        return
    for command in script.commands:
        for found in _STARTED.finditer(command.plain):
            call = call_at(command, found.start("program"), found["program"].rpartition("/")[2])
            if _ACTION.search(call.plain) and "$" not in _before_image(call.words, script):
                message = f"the job has GPUs, and {call.program} is started without --nv"
                yield RULE.at(call.line, message)


def _before_image(words: tuple[str, ...], script: Script) -> str:
    """Return the options of a call up to the image: a variable among them may hold --nv."""
    image = next(
        (number for number, word in enumerate(words) if number and _is_image(word, script)),
        len(words),
    )
    return " ".join(words[:image])


def _is_image(word: str, script: Script) -> bool:
    """Return whether a word is an image, or a variable that holds one."""
    if word.endswith(_IMAGES):
        return True
    name = re.fullmatch(r"\$\{?(\w{1,64})\}?", word)
    set_to = re.compile(rf"\b{name[1]}=[\"']?([^\s\"';&|]{{1,400}})") if name else None
    values = [
        found[1] for command in script.commands if set_to and (found := set_to.search(command.text))
    ]
    return any(value.endswith(_IMAGES) for value in values)


def _has_gpus(script: Script) -> bool:
    if any((script.value(name) or "0") not in ("0", "none") for name in _OPTIONS):
        return True
    gres = script.value("gres") or ""
    return "gpu" in gres and not re.search(r"gpu(?::[\w-]{1,64})?:0\b", gres)
