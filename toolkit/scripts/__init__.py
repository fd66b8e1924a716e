"""Job scripts: a plan rendered by templates."""

from __future__ import annotations

from toolkit.model.plan import Plan


def script(plan: Plan) -> str:
    """Return the sbatch script of a plan; the first call imports Jinja2."""
    from toolkit.scripts import render

    return render.script(plan)
