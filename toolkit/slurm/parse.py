"""What Slurm's commands print, as data. Pure; the shapes differ between versions 21.08 and 25, and all of them are read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from toolkit.model.run import JobState
from toolkit.model.site import Partition

# --json would be structured, but in 22.05 it says return_code 0 of a job that ended with 3. The name is last: it may hold a "|".
SACCT_FORMAT = "JobIDRaw,State,ExitCode,Reason,NodeList,Partition,Start,End,JobName"
SACCT_ELEMENTS = SACCT_FORMAT.replace("JobIDRaw", "JobID")
SINFO_FORMAT = "%P|%a|%l|%s|%D|%t|%c|%m|%G"
_GPU = re.compile(r"gpu:(?:(?P<type>[A-Za-z][^:,(]*):)?(?P<count>\d+)")
# States of nodes that no job can start on, in sinfo's short form. Not "unk": so are all nodes for a moment after the controller's start.
_GONE = ("down", "drain", "drng", "fail", "futr", "pow_dn", "boot")


def minutes(text: str) -> int | None:
    """Slurm's time (``MM``, ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM[:SS]``) in minutes, begun ones counted; None: unlimited.

    Raises:
        ValueError: it is no time.
    """
    if text.lower() in ("infinite", "unlimited", "-1"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise ValueError(f"{text!r} is not a time; Slurm's are MM, HH:MM:SS and D-HH:MM:SS")
    days, first, second, third = (int(group) if group else 0 for group in match.groups())
    if match[1] or match[4]:
        hours, mins, seconds = first, second, third
    else:
        hours, mins, seconds = 0, first, second
    return days * 1440 + hours * 60 + mins + (1 if seconds else 0)


def partitions(text: str) -> tuple[Partition, ...]:
    """Lines of ``sinfo --format=SINFO_FORMAT``, one for each partition, state and kind of node, as partitions in Slurm's order."""
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        name, available, limit, size, count, state, cpus, memory, gres = line.split("|")
        entry = found.setdefault(
            name.rstrip("*"),
            {"default": name.endswith("*"), "nodes": 0, "cpus": 0, "memory": 0, "gpus": 0, "gpu_type": None},
        )
        entry["available"] = available == "up"
        entry["max_minutes"] = minutes(limit)
        entry["max_nodes"] = _upper(size)
        if not state.startswith(_GONE):
            entry["nodes"] += int(count)
        gpus, gpu_type = _gpus(gres)
        entry["cpus"] = max(entry["cpus"], _number(cpus))
        entry["memory"] = max(entry["memory"], _number(memory))
        if gpus > entry["gpus"]:
            entry["gpus"], entry["gpu_type"] = gpus, gpu_type
    return tuple(Partition(name=name, **entry) for name, entry in found.items())


def _upper(size: str) -> int | None:
    last = size.split("-")[-1]
    return int(last) if last.isdigit() else None


def _number(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def _gpus(gres: str) -> tuple[int, str | None]:
    matches = list(_GPU.finditer(gres))
    return sum(int(match["count"]) for match in matches), next((match["type"] for match in matches if match["type"]), None)


def mpi_types(text: str) -> tuple[str, ...]:
    """The answer of ``srun --mpi=list``: names only, the plugin's versions (``pmix_v4``) included, in Slurm's order.

    22.05 prints ``MPI plugin types are...`` and indented names, later ``specific pmix plugin versions available: pmix_v4``.
    """
    names: list[str] = []
    for line in text.splitlines():
        head, colon, rest = line.partition(":")
        if colon and "versions available" in head:
            names += re.findall(r"[\w.]+", rest)
        elif re.fullmatch(r"\s*(?:srun: )?\s*[\w.]+\s*", line):
            names.append(line.replace("srun:", "").strip())
    return tuple(dict.fromkeys(names))


def jobs(text: str) -> dict[int, JobState]:
    """The answer of ``squeue --json``, by job id.

    Raises:
        ValueError: it is not such an answer, or one that tells of an error: 22.05 ends with 0 also where no controller answers.
    """
    # slurmctld prints warnings of its plugins before the JSON, on some sites.
    start = text.find("{")
    data = json.loads(text[start:] if start >= 0 else text)
    rows = list(data.get("jobs") or ())
    if data.get("errors") and not rows:
        raise ValueError(f"squeue could not tell: {data['errors']}")
    states = {state.job_id: state for state in map(_job, rows)}
    arrays: dict[int, list[JobState]] = {}
    for row in rows:
        arrays.setdefault(_value(row.get("array_job_id")), []).append(_job(row))
    return states | {number: array(number, elements) for number, elements in arrays.items() if number}


def elements(text: str, number: int) -> dict[int, JobState]:
    """The elements of one job array in the answer of ``squeue --json``, by their numbers; those that still wait together are missing.

    Raises:
        ValueError: it is not such an answer.
    """
    start = text.find("{")
    rows = json.loads(text[start:] if start >= 0 else text).get("jobs") or ()
    own = [row for row in rows if _value(row.get("array_job_id")) == number and not row.get("array_task_string")]
    found = {_value(row["array_task_id"]): _job(row) for row in own if _is_set(row.get("array_task_id"))}
    return {element: found[element] for element in sorted(found)}


def _is_set(number: Any) -> bool:
    return bool(number.get("set", True)) if isinstance(number, Mapping) else number is not None


def array(number: int, elements: Sequence[JobState]) -> JobState:
    """A job array as one job: it runs while an element does, has ended when all have, and came out as the first that did not complete."""
    running = [state for state in elements if not state.ended]
    begun = next((state for state in running if state.state != "PENDING"), None)
    failed = next((state for state in elements if state.ended and state.state != "COMPLETED"), None)
    shown = begun or (running[0] if running else failed or elements[0])
    partly = running and not begun and len(running) < len(elements)  # some have ended, others still wait
    return replace(
        shown,
        job_id=number,
        state="RUNNING" if partly else shown.state,
        nodes=",".join(dict.fromkeys(state.nodes for state in elements if state.nodes)),
        start=min((state.start for state in elements if state.start), default=0),
        end=0 if running else max(state.end for state in elements),
    )


def _job(data: Mapping[str, Any]) -> JobState:
    state = data.get("job_state", "")
    names = [state] if isinstance(state, str) else list(state)
    code, signal = _exit(data.get("exit_code"))
    return JobState(
        job_id=int(data["job_id"]),
        state=base_state(names),
        name=str(data.get("name") or ""),
        reason=_word(data.get("state_reason")),
        nodes=_word(data.get("nodes")),
        partition=str(data.get("partition") or ""),
        exit_code=code,
        signal=signal,
        start=_value(data.get("start_time")),
        end=_value(data.get("end_time")),
        log=str(data.get("standard_output") or ""),
    )


def _word(text: Any) -> str:
    """A word of Slurm's, or empty for any of the ways in which it says that there is none."""
    return "" if text in (None, "None", "None assigned", "(null)", "Unknown") else str(text)


def base_state(names: Iterable[str]) -> str:
    """The base state among state and flags: ``["COMPLETED", "COMPLETING"]`` is ``COMPLETING``: it has not let go of its nodes."""
    upper = [name.upper() for name in names if name]
    if "COMPLETING" in upper:
        return "COMPLETING"
    return upper[0].split()[0] if upper else ""


def _value(number: Any) -> int:
    if isinstance(number, Mapping):
        return int(number.get("number") or 0) if number.get("set", True) else 0
    return int(number or 0)


def _exit(code: Any) -> tuple[int, int]:
    if isinstance(code, Mapping):
        signal = code.get("signal") or {}
        return _value(code.get("return_code")), _value(signal.get("id", signal.get("signal_id")))
    number = int(code or 0)  # before 23.02: as wait() gives it
    return (number >> 8) & 255, number & 127


def accounts(text: str) -> dict[int, JobState]:
    """Lines of ``sacct --parsable2 --format=SACCT_FORMAT`` with times in seconds, by job id."""
    found = {}
    for line in text.splitlines():
        number, state, code, reason, nodes, partition, start, end, name = line.split("|", 8)
        if number.isdigit():
            exit_code, _, signal = code.partition(":")
            found[int(number)] = JobState(
                job_id=int(number),
                state=base_state([state]),
                name=name,
                reason=_word(reason),
                nodes=_word(nodes),
                partition=partition,
                exit_code=_number(exit_code),
                signal=_number(signal),
                start=_number(start),
                end=_number(end),
            )
    return found


def element_lines(text: str) -> dict[int, JobState]:
    """The elements of a job array in the answer of ``scontrol --oneliner show job``, by their numbers."""
    found: dict[int, JobState] = {}
    for line in text.splitlines():
        match = re.search(r"ArrayTaskId=(\d+) ", line)
        if match:
            found |= {int(match[1]): state for state in job_lines(line).values()}
    return found


def element_accounts(text: str) -> dict[int, JobState]:
    """The elements of a job array in lines of ``sacct --parsable2 --format=SACCT_ELEMENTS``, by their numbers."""
    found: dict[int, JobState] = {}
    for line in text.splitlines():
        match = re.match(r"(\d+)_(\d+)\|", line)
        if match:
            found |= {int(match[2]): state for state in accounts(f"{match[1]}|{line.split('|', 1)[1]}").values()}
    return found


def job_lines(text: str) -> dict[int, JobState]:
    """The answer of ``scontrol --oneliner show job``, for a Slurm that was built without JSON."""
    found = {}
    for line in text.splitlines():
        values = dict(re.findall(r"(\w+)=(\S*)", line))
        if "JobId" not in values:
            continue
        code, _, signal = values.get("ExitCode", "0:0").partition(":")
        found[int(values["JobId"])] = JobState(
            job_id=int(values["JobId"]),
            state=base_state([values.get("JobState", "")]),
            name=values.get("JobName", ""),
            reason=_word(values.get("Reason")),
            nodes=_word(values.get("NodeList")),
            partition=values.get("Partition", ""),
            exit_code=int(code),
            signal=int(signal or 0),
            log=values.get("StdOut", ""),
        )
    return found


def marked(text: str, mark: str) -> tuple[int, ...]:
    """The ids of jobs in lines of ``id|command`` whose command has the word ``mark``, in rising order; an array is one job."""
    found = set()
    for line in text.splitlines():
        number, _, command = line.partition("|")
        match = re.match(r"\d+", number)
        if match and mark in command.split():
            found.add(int(match[0]))
    return tuple(sorted(found))
