"""One framework for all checks: preflight rules, doctor items, checks of images and lint rules.

A check is a function under ``@check``, in a module of a package that a ``Registry`` names. Adding a
check is adding it there: no other file lists it.
"""
