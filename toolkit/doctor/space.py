"""Free space and quotas where images, runs and caches go."""

from __future__ import annotations

from toolkit.doctor.case import Answer, Case, failed, passed, warned
from toolkit.doctor.directories import existing
from toolkit.images.store import space
from toolkit.images.store.space import Room
from toolkit.units import human_size

# Bytes below which work soon stops: images of NVIDIA's are 5 to 10 GB, runs hold scripts and logs.
LITTLE = {"images": 10 * 10**9, "runs": 10**9, "caches": 2 * 10**9}
NONE = 10 * 10**6


def check(case: Case) -> Answer:
    return judge(
        {name: space.look(existing(directory)) for name, directory in case.directories.items()}
    )


def judge(rooms: dict[str, Room]) -> Answer:
    """Whether there is room enough in each place."""
    said = {
        name: f"{name} {human_size(room.free)} free{_quota(room)}" for name, room in rooms.items()
    }
    full = [said[name] for name, room in rooms.items() if room.available < NONE]
    low = [said[name] for name, room in rooms.items() if room.available < LITTLE.get(name, NONE)]
    if full:
        return failed(
            f"full: {'; '.join(full)}", "toolkit image prune --unused-for 60d; toolkit image cache"
        )
    if low:
        return warned(
            f"little room: {'; '.join(low)}",
            "toolkit image prune --unused-for 60d, or TOOLKIT_IMAGES on scratch",
        )
    return passed("; ".join(said.values()))


def _quota(room: Room) -> str:
    return "" if room.quota is None else f", {human_size(room.quota)} of the quota"
