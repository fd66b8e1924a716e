"""Base of all models: frozen, strict, and with errors that name the key and its nearest match."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Model(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Base of every structure of the project: immutable, no unknown keys, compared by value."""


class Stored(Model, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of what the toolkit stores for itself: it passes over keys of other versions."""


AnyModel = TypeVar("AnyModel", bound=Model)


class BadDataError(ValueError):
    """Data does not fit its model.

    The callers know the file, so they turn it into a ``ConfigError``.

    Attributes:
        key: the path of the key, such as ``steps[2].packages``.
        choices: the valid keys, where an unknown one was given.
        value: the unknown key.
        line: its line number; 0: unknown, so the caller searches for the key.
        others: further faults of the same data.
    """

    others: tuple[BadDataError, ...] = ()

    def __init__(
        self,
        message: str,
        key: str = "",
        choices: tuple[str, ...] = (),
        value: str | None = None,
        line: int = 0,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.choices = choices
        self.value = value
        self.line = line


_MOST_FAULTS = 20  # of a file, for one message
_LONGEST = 40  # characters of a value that is shown
_TYPES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "true or false",
    **dict.fromkeys((tuple, list), 'a list, such as ["a", "b"]'),
    dict: 'a table, such as { NAME = "value" }',
}


def field_names(model: type[Model]) -> tuple[str, ...]:
    """Return the keys of a model, as they are written in files."""
    return model.__struct_encode_fields__


def convert(data: object, model: type[AnyModel]) -> AnyModel:
    """Validate plain data, as parsed from TOML or JSON, into a model.

    Raises:
        BadDataError: of the first fault, with the path of its key; with those after it.
    """
    try:
        return msgspec.convert(data, model)
    except msgspec.ValidationError:
        first, *others = islice(_faults(data, model, ""), _MOST_FAULTS)
        first.others = tuple(others)
        raise first from None


def _faults(data: object, kind: Any, key: str) -> Iterator[BadDataError]:
    """Yield what does not fit the type of a key: the faults of its parts, or of it as a whole."""
    bare = _bare(kind)
    kinds = [*map(_bare, get_args(bare) if get_origin(bare) in (Union, UnionType) else (bare,))]
    parts = [*islice(_faults_of_parts(data, kinds, key), _MOST_FAULTS)]
    yield from parts
    if parts:
        return
    try:
        msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ValueError):  # the model's own check
            yield BadDataError(str(error.__cause__), key)
            return
        # Of another type than is expected, the value may be a secret, and is not shown.
        types = [str if get_origin(each) is Literal else each for each in kinds]
        named = _TYPES.get(type(data), type(data).__name__).partition(",")[0]
        given = repr(data) if type(data) in types else named
        got = f", got {given}" if len(given) <= _LONGEST else ""
        yield BadDataError(f"expected {' or '.join(dict.fromkeys(_expected(kind)))}{got}", key)


def _expected(kind: Any) -> Iterator[str]:
    """Yield what fits a type, as users know it: its own description, or types in TOML's words."""
    if get_origin(kind) is Annotated:
        bare, bounds, *_ = get_args(kind)
        yield from (bounds.description,) if bounds.description else _expected(bare)
    elif get_origin(kind) is Literal:
        yield f"one of {', '.join(map(str, get_args(kind)))}"
    elif get_origin(kind) in (Union, UnionType):
        for each in get_args(kind):
            yield from _expected(each)
    elif kind is not NoneType:
        yield _TYPES.get(get_origin(kind) or kind, _TYPES[dict])


def _bare(kind: Any) -> Any:
    """Return a type without its bounds."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _faults_of_parts(data: object, kinds: Iterable[Any], key: str) -> Iterator[BadDataError]:
    """Yield the faults of the keys of a model, and of the entries of a table or list."""
    for kind in kinds:
        inner = get_args(kind)
        if isinstance(data, dict) and isinstance(kind, type) and issubclass(kind, Model):
            yield from _faults_of_keys(data, kind, key)
        elif isinstance(data, dict) and get_origin(kind) is dict:
            for name, entry in data.items():
                yield from _faults(name, inner[0], _below(key, name))
                yield from _faults(entry, inner[1], _below(key, name))
        elif isinstance(data, list) and get_origin(kind) is tuple and ... in inner:
            for number, entry in enumerate(data):
                yield from _faults(entry, inner[0], f"{key}[{number}]")


def _faults_of_keys(
    data: Mapping[str, object], model: type[Model], key: str
) -> Iterator[BadDataError]:
    known = {field.encode_name: field for field in msgspec.structs.fields(model)}
    for name, value in data.items():
        if name in known:
            yield from _faults(value, known[name].type, _below(key, name))
        elif model.__struct_config__.forbid_unknown_fields:
            message = f"there is no key {name!r}"
            yield BadDataError(message, _below(key, name), tuple(known), name)
    for name, field in known.items():
        if field.required and name not in data:
            yield BadDataError(f"the key {name!r} is missing", key)


def _below(key: str, name: str) -> str:
    """Return the path of a key in a table, as TOML writes it."""
    last = name if re.fullmatch(r"[\w-]+", name) else toml_value(name)
    return f"{key}.{last}" if key else last


def from_toml(text: str, model: type[AnyModel]) -> AnyModel:
    """Parse TOML into a model.

    Raises:
        BadDataError: the text is not TOML (the message has line and column), or does not fit the
            model.
    """
    return convert(toml(text), model)


def toml(text: str) -> dict[str, object]:
    """Parse TOML into plain data.

    Raises:
        BadDataError: the text is not TOML; the message has line and column.
    """
    try:
        data: dict[str, object] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number with thousands of digits
        text = str(error)
        line = re.search(r"at line (\d+)", text)
        message = f"this is not valid TOML: {text[:1].lower()}{text[1:]}"
        raise BadDataError(message, line=int(line[1]) if line else 0) from None
    return data


def toml_value(value: object) -> str:
    """Format plain data as a value of TOML, which is JSON but for tables and the character DEL."""
    import json  # most commands write no TOML

    if isinstance(value, Mapping):
        pairs = (f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def to_json(data: object, *, indent: int = 2, sort: bool = True) -> str:
    """Encode a model as JSON with its fields in the order of the model and a newline at the end.

    Args:
        data: a model, or plain data.
        indent: spaces for each level.
        sort: sort the keys of dicts, so that equal data gives equal bytes.
    """
    return (
        msgspec.json.format(
            msgspec.json.encode(data, order="deterministic" if sort else None), indent=indent
        ).decode()
        + "\n"
    )


def from_json(text: str | bytes, model: type[AnyModel]) -> AnyModel:
    """Parse JSON that the toolkit wrote.

    Raises:
        BadDataError: the text is not JSON, or another version of the toolkit wrote it.
    """
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadDataError(f"this is not valid JSON: {error}") from None
    return convert(data, model)
