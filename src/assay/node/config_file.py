"""The node's settings from a TOML file, flags and the environment; and printed as TOML again."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from assay.errors import SettingsError
from assay.node.config import NodeConfig, Section
from assay.settings import process_environment

KEY_VARIABLES = {
    "control": "ASSAY_NODE_CONTROL_KEY",
    "inference": "ASSAY_NODE_INFERENCE_KEY",
}
Table = dict[str, Any]


def node_config(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> NodeConfig:
    """The settings of one node. ``flags`` are dotted names with values; None is "not given".

    Flags win over the environment, which wins over the file. Raises SettingsError that names the
    field, and never shows a value: it may be a key.
    """
    table = {} if file is None else _read(file)
    variables = process_environment() if environment is None else environment
    for key, variable in KEY_VARIABLES.items():
        if variables.get(variable):
            _put(table, f"keys.{key}", variables[variable])
    for name, value in (flags or {}).items():
        if value is not None:
            _put(table, name, value)
    _read_key_files(table)
    try:
        return NodeConfig.model_validate(table)
    except ValidationError as error:
        raise SettingsError(_explained(error, file)) from error


def as_toml(config: NodeConfig) -> str:
    """The settings as a commented file that can be loaded again; secrets are left out."""
    return "\n".join(_lines(config, "")) + "\n"


def _read(file: Path) -> Table:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {file}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"--config {file}: not TOML: {error}") from error


def _put(table: Table, name: str, value: Any) -> None:
    *parents, last = name.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise SettingsError(f"{parent}: expected a table")
    table[last] = value


def _read_key_files(table: Table) -> None:
    keys = table.get("keys")
    if not isinstance(keys, dict):
        return
    for key in KEY_VARIABLES:
        file = keys.get(f"{key}_file")
        if not isinstance(file, str | Path) or keys.get(key) is not None:
            continue
        try:
            lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"keys.{key}_file: {error}") from error
        keys[key] = lines[0].strip() if lines else ""


def _explained(error: ValidationError, file: Path | None) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        message = "there is no such setting"
        close = get_close_matches(str(first["loc"][-1]), _names(first["loc"][:-1]), n=1)
        message += f"; did you mean {close[0]}?" if close else " (see --print-config)"
    else:
        message = first["msg"].removeprefix("Value error, ")
    where = "" if file is None else f"{file}: "
    return f"{where}{field}: {message}" if field else f"{where}{message}"


def _names(path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = NodeConfig
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None or not _is_section(field.annotation):
            return []
        model = field.annotation  # type: ignore[assignment]
    return list(model.model_fields)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _lines(section: Section, prefix: str) -> Iterator[str]:
    fields = type(section).model_fields
    for name, field in fields.items():
        if not _is_section(field.annotation):
            yield from _setting(name, field, getattr(section, name))
    for name, field in fields.items():
        if _is_section(field.annotation):
            child = getattr(section, name)
            yield f"\n[{prefix}{name}]"
            yield f"# {(type(child).__doc__ or '').strip().splitlines()[0]}"
            yield from _lines(child, f"{prefix}{name}.")


def _setting(name: str, field: FieldInfo, value: Any) -> Iterator[str]:
    yield f"# {field.description}"
    if value is None or isinstance(value, SecretStr):
        yield f"# {name} = " + ("(not set)" if value is None else "(set, not shown)")
    elif isinstance(value, dict):
        shown = ", ".join(f"{json.dumps(key)} = (not shown)" for key in value)
        yield f"# {name} = {{ {shown} }}" if value else f"{name} = {{}}"
    else:
        yield f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    # JSON's spelling of strings, numbers and booleans is TOML's too.
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
