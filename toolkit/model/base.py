"""Base of all models: frozen, strict, and with errors that name the key and its nearest match."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

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


_FIELDS = "__struct_encode_fields__"
_LONGEST = 1000  # characters of the path of a key


def field_names(model: type[Model]) -> tuple[str, ...]:
    """Return the keys of a model, as they are written in files."""
    return model.__struct_encode_fields__


def convert(data: object, model: type[AnyModel]) -> AnyModel:
    """Validate plain data, as parsed from TOML or JSON, into a model.

    Raises:
        BadDataError: of the first fault, with the path of its key. It does not show the value,
            which may be a secret.
    """
    try:
        return msgspec.convert(data, model)
    except msgspec.ValidationError as error:
        raise _fault(str(error), data, model) from None


def _fault(text: str, data: Any, model: Any) -> BadDataError:
    """Return the error for a message of msgspec: ``Expected `int`, got `str` - at `$.nodes```."""
    cause, at, place = text.rpartition(" - at `")
    cause, place = (cause, place) if at else (text, "")
    path = place.rpartition("$")[2].rstrip("`")[:_LONGEST]  # of a hostile name, what it likes
    if "[...]" in path and (fault := _fault_of_entry(data, model, path.partition("[...]")[0])):
        return fault
    kind = _type_at(model, path)
    if unknown := re.match(r"Object contains unknown field `(.*)`", cause, re.DOTALL):
        key = f"{path}.{unknown[1]}".lstrip(".")
        models = (field_names(each) for each in _bare(kind) if hasattr(each, _FIELDS))
        return BadDataError(f"there is no key {unknown[1]!r}", key, next(models, ()), unknown[1])
    if place.startswith("key"):  # of a table is wrong itself
        kind = next(iter(get_args(_bare(kind)[0])), kind)
    metas = (meta for each in _kinds(kind) for meta in getattr(each, "__metadata__", ()))
    if forms := [meta.description for meta in metas if meta.description]:
        cause = f"expected {' or '.join(forms)}"
    cause = cause.replace("`", "").replace(" | null", "")
    return BadDataError(cause[:1].lower() + cause[1:], path.lstrip("."))


def _fault_of_entry(data: Any, model: Any, path: str) -> BadDataError | None:
    """Return the error of the first wrong entry of a table, which msgspec does not name."""
    kind = _type_at(model, f"{path}[...]")
    with suppress(LookupError, TypeError, AttributeError):  # the path may be a hostile name's
        for field, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
            data = data[field or int(index)]
        for name, value in data.items():
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                fault = _fault(str(error), value, kind)
                fault.key = f"{path}.{name}.{fault.key}".replace(".[", "[").strip(".")[:_LONGEST]
                return fault
    return None


def _type_at(kind: Any, path: str) -> Any:
    """Return the type at a path of msgspec's, such as ``.partitions[...].gpus``."""
    for name in re.findall(r"\.([^.\[]+)|\[[^\]]*\]", path):
        for each in _bare(kind):
            if name and hasattr(each, _FIELDS):
                fields = {field.encode_name: field.type for field in msgspec.structs.fields(each)}
                kind = fields.get(name)
            elif not name and get_args(each):
                kind = get_args(each)[get_origin(each) is dict]
    return kind


def _kinds(kind: Any) -> tuple[Any, ...]:
    """Return the types of which a value may be one."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _bare(kind: Any) -> list[Any]:
    """Return the same without their bounds."""
    return [
        getattr(each, "__origin__", each) if get_origin(each) is Annotated else each
        for each in _kinds(kind)
    ]


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
