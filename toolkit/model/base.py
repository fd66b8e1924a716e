"""Base of all models: frozen, strict, and with errors that name the key and its nearest match."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Literal, TypeVar, get_args, get_origin

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Model(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Base of every structure of the project: immutable, no unknown keys, compared by value."""


AnyModel = TypeVar("AnyModel", bound=Model)


class BadDataError(ValueError):
    """Data does not fit its model.

    The callers know the file, so they turn it into a ``ConfigError``.

    Attributes:
        key: the path of the key, such as ``steps[2].packages``.
        choices: the valid keys, where an unknown one was given.
        value: the unknown key.
        line: its line number; 0: unknown, so the caller searches for the key.
    """

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


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_AT = re.compile(r" - at `\$?\.?(?P<path>[^`]*)`$")


def field_names(model: type[Model]) -> tuple[str, ...]:
    """Return the keys of a model, as they are written in files."""
    return tuple(field.encode_name for field in msgspec.structs.fields(model))


def convert(data: object, model: type[AnyModel]) -> AnyModel:
    """Validate plain data, as parsed from TOML or JSON, into a model.

    Raises:
        BadDataError: with the path of the key and what was expected there.
    """
    try:
        return msgspec.convert(data, model)
    except msgspec.ValidationError as error:
        text = str(error)
        at = _AT.search(text)
        key = at["path"] if at else ""
        message = _AT.sub("", text)
        unknown = _UNKNOWN.search(message)
        if unknown:
            choices = field_names(_model_at(model, key))
            name = unknown["name"]
            raise BadDataError(
                f"there is no key {name!r}", f"{key}.{name}".lstrip("."), choices, name
            ) from None
        from toolkit.model.messages import format_type_error

        choices = _words_at(model, key)
        raise BadDataError(format_type_error(message, _value_at(data, key), choices), key) from None


def _value_at(data: object, path: str) -> object:
    """Return the value at a path such as ``steps[2].packages``; None if there is no such value."""
    for part in re.findall(r"[\w-]+", path):
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            return None
    return data


def _words_at(model: type[Model], path: str) -> tuple[str, ...]:
    """Return the words that a key accepts; empty if it accepts any value."""
    above, _, name = path.rpartition(".")
    hints = {
        field.encode_name: field.type for field in msgspec.structs.fields(_model_at(model, above))
    }
    inner = (hints.get(name), *getattr(hints.get(name), "__args__", ()))
    words = [word for hint in inner if get_origin(hint) is Literal for word in get_args(hint)]
    return tuple(str(word) for word in words)


def _model_at(model: type[Model], path: str) -> type[Model]:
    """Return the model that the value at ``path`` belongs to.

    If the path leads out of the models, return the last model on the way.
    """
    current: type[Model] = model
    for part in re.findall(r"[A-Za-z_]\w*", path):
        hints = {field.encode_name: field.type for field in msgspec.structs.fields(current)}
        inner = _inner_model(hints.get(part))
        if inner is None:
            return current
        current = inner
    return current


def _inner_model(hint: object) -> type[Model] | None:
    if isinstance(hint, type) and issubclass(hint, Model):
        return hint
    for argument in getattr(hint, "__args__", ()):
        inner = _inner_model(argument)
        if inner is not None:
            return inner
    return None


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
        from toolkit.model.messages import format_toml_error

        message, line = format_toml_error(str(error))
        raise BadDataError(message, line=line) from None
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
        data: a model.
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
