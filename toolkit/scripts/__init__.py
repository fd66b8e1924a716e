"""Plans become scripts."""

from __future__ import annotations

from toolkit.model.plan import Plan


def script(plan: Plan) -> str:
    """The sbatch script of a plan, see ``render``; Jinja2 is imported with the first call."""
    from toolkit.scripts import render

    return render.script(plan)
