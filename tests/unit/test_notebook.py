"""Notebooks before they are submitted: what is refused, and what the script holds."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.samples import LOCAL, MANIFEST, inputs
from toolkit.cli.notebook import idle_seconds
from toolkit.errors import PlanError, UsageError
from toolkit.model.image import Packages
from toolkit.planning.plan import plan
from toolkit.scripts import script

_JUPYTER = replace(MANIFEST, packages=Packages(pip={"jupyterlab": "4.6.6", "torch": "2.13.0"}))


def notebook(job: dict[str, Any] | None = None, **changes: Any) -> Any:
    given = {
        "launcher": "notebook",
        "arguments": ("0", "."),
        "ntasks_per_node": None,
        "nodes": 1,
        **(job or {}),
    }
    settings = {"script": "jupyter", "program": True, "manifest": _JUPYTER, **changes}
    return inputs(given, **settings)


def refusal(given: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(given)
    return " ".join(f"{each.place} {each.cause} {each.next_step}" for each in caught.value.findings)


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, 0), ("30m", 1800), ("2h", 7200), ("90s", 90), ("30", 1800)]
)
def test_times_without_use(text: str | None, seconds: int) -> None:
    assert idle_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0m", "1.5h", "-1m", "30 m", "1d", "٣m", "9999999m"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        idle_seconds(text)


def test_an_image_without_jupyterlab_is_refused_with_the_feature_that_adds_it() -> None:
    bare = replace(MANIFEST, packages=Packages(pip={"torch": "2.13.0"}))
    assert "--with jupyter" in refusal(notebook(manifest=bare))
    plan(notebook(manifest=None))  # what is not known is not refused


def test_a_sites_limit_of_notebooks_is_kept() -> None:
    site = replace(LOCAL, notebook_minutes=1440)
    assert "1440 minutes at most" in refusal(notebook({"time": "2-0:00:00"}, site=site))
    plan(notebook({"time": "24:00:00"}, site=site))


def test_a_job_array_of_notebooks_is_refused() -> None:
    assert "--array" in refusal(notebook({"array": "0-3"}))


def test_the_script_holds_no_token_and_no_port() -> None:
    text = script(plan(notebook()))
    assert "umask 077" in text
    assert "--port" not in text
    assert '"KernelManager.transport": "ipc"' in text
