"""Packages in a user's home do not hide the image's."""

from __future__ import annotations

from toolkit.images.verify.case import Answer, Case, at, failed, passed, unchecked


def verify(case: Case) -> Answer:
    """An image of ours must see to it itself; in a foreign one it is enough that it obeys the variable that every job of ours sets."""
    if case.no_python:
        return unchecked(case.no_python)
    alone = case.inside.run(["python3", at("checks/user_site.py")])
    if alone.ok:
        return passed("a module in the user's site packages is not imported")
    if case.image.manifest is not None:
        return failed(" ".join(alone.tail(1)))
    told = case.inside.run(
        ["python3", at("checks/user_site.py")], variables={"PYTHONNOUSERSITE": "1"}
    )
    if told.ok:
        return passed("off in jobs, which set PYTHONNOUSERSITE; the image by itself leaves them on")
    return failed(" ".join(told.tail(1)))
