"""Have torch keep NCCL's last collectives of each rank, and write them down at a timeout."""

from __future__ import annotations

import re

from toolkit.model.case import Case

PREFIX = "nccl_trace_rank_"  # the number of the rank follows; below the directory of reports
_ENTRIES = "2000"  # the default of newer versions
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_FIRST, _RENAMED = (2, 5), (2, 9)  # torch warns of the older names since it has others


def environment(case: Case) -> dict[str, str]:
    """Return the settings of torch's flight recorder for ranks with GPUs, which cost nothing.

    Source: docs.pytorch.org, torch_nccl_environment_variables, and getCvarString of c10d.
    """
    text = case.manifest.frameworks.get("torch", "") if case.manifest else ""
    match = _VERSION.match(text)
    version = (int(match[1]), int(match[2])) if match else None
    has_gpus = case.job.most_gpus or case.job.gpus_by_node
    if not has_gpus or (version is not None and version < _FIRST):
        return {}
    is_renamed = version is not None and version >= _RENAMED
    size = "TORCH_FR_BUFFER_SIZE" if is_renamed else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    file = "TORCH_FR_DUMP_TEMP_FILE" if is_renamed else "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
    return {
        size: _ENTRIES,
        file: f"{case.run}/report/{PREFIX}",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
