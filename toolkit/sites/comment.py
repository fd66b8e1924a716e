"""Check a ``--comment`` against the site's rule. Pure."""

from __future__ import annotations

from toolkit.errors import nearest
from toolkit.model.site import CommentRule


def problem(rule: CommentRule, value: str | None) -> str | None:
    """Return what is wrong with a comment, with the nearest valid word; None if it is valid."""
    if not value:
        return "this site requires a comment" if rule.required else None
    if rule.fields:
        return _fields_problem(rule, value)
    if rule.words and value not in rule.words:
        return f"{value!r} is not among this site's comments{_close(value, rule.words)}"
    return None


def _fields_problem(rule: CommentRule, value: str) -> str | None:
    given: dict[str, str] = {}
    for part in value.split(";"):
        key, sign, text = part.partition("=")
        if not sign:
            return f"{part!r} is not <key>=<value>; this site wants {form(rule)}"
        given[key] = text
    for key, allowed in rule.fields.items():
        if key not in given:
            return f"{key}= is missing; this site wants {form(rule)}"
        if allowed and given[key] not in allowed:
            close = _close(given[key], allowed)
            return f"{given[key]!r} is not among this site's values of {key}{close}"
    unknown = next((key for key in given if key not in rule.fields), None)
    return (
        f"this site knows no {unknown!r} in a comment{_close(unknown, tuple(rule.fields))}"
        if unknown is not None
        else None
    )


def form(rule: CommentRule) -> str:
    """Return the format of a comment: ``field=<field>;appl=<appl>``, or the allowed words."""
    return (
        ";".join(f"{key}=<{key}>" for key in rule.fields) if rule.fields else " | ".join(rule.words)
    )


def example(rule: CommentRule) -> str:
    """Return a comment that the rule allows: the site's own example, or the first allowed words."""
    if rule.example and problem(rule, rule.example) is None:
        return rule.example
    first = (f"{key}={allowed[0] if allowed else key}" for key, allowed in rule.fields.items())
    return ";".join(first) or next(iter(rule.words), "toolkit")


def _close(value: str, allowed: tuple[str, ...]) -> str:
    close = nearest(value, allowed)
    return f"; close: {close}" if close else f"; one of {', '.join(sorted(allowed))}"
