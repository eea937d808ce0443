"""What properties refer to: files, and secrets kept elsewhere (``${file:/path:key}``).

References are replaced when connecting, in the connecting process: a Spark executor uses its own variables
and files. The values stay with that connection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pyspark_kafkalog.config.definition import describe
from pyspark_kafkalog.config.properties import MAX_FILE_BYTES, parse_properties
from pyspark_kafkalog.config.security_config import (
    DIRECTORY,
    ENV,
    REFERENCE,
    Provider,
    ProvidersConfig,
    resolvable,
)
from pyspark_kafkalog.errors import InvalidConfig

Shipped = Callable[[str], str | None]
"""Path of a file shipped under this base name, or None if nothing was shipped."""

_shipped: Shipped | None = None


def look_also(shipped: Shipped) -> None:
    """From now on, also look for missing files where ``shipped`` says.

    Executors have files of ``--files`` under their base names in a directory that only the data source knows.
    """
    global _shipped
    _shipped = shipped


def found_file(path: str, name: str) -> Path:
    """The file at ``path``, or shipped under its base name. `InvalidConfig` has both places."""
    there = Path(path)
    if there.is_file():
        return there
    shipped = _shipped(there.name) if _shipped is not None else None
    if shipped is not None and Path(shipped).is_file():
        return Path(shipped)
    also = f", nor was it shipped with the job: {shipped}" if shipped else ""
    raise InvalidConfig(f"{name}: there is no file {path}{also}")


C = TypeVar("C", bound=ProvidersConfig)


def resolved(config: C, named: Callable[[str], str] = str) -> C:
    """``config`` with references to its ``config.providers`` replaced; unchanged without providers.

    ``named`` returns the user's property names. Raises `InvalidConfig` with property, provider, path and key
    of a missing value, never with a value.
    """
    if not config.config_providers:
        return config
    providers = config.providers()
    values: dict[str, object] = {}
    for item in describe(type(config)):
        value = getattr(config, item.field)
        if resolvable(item) and value is not None and "${" in value:
            values[item.field] = _replaced(value, providers, named(item.name))
    # A value that looks like a reference is not one.
    return replace(config, config_providers=(), config_provider_settings=None, **values)


def _replaced(text: str, providers: Mapping[str, Provider], name: str) -> str:
    def value(given: re.Match[str]) -> str:
        provider = providers.get(given[1])
        return given[0] if provider is None else _value(provider, given[3], given[4], f"{name}: {given[0]}")

    return REFERENCE.sub(value, text)


def _value(provider: Provider, path: str | None, key: str, place: str) -> str:
    if provider.kind == ENV:
        return _variable(provider, path, key, place)
    if not path or not key:
        what = "file" if provider.kind == DIRECTORY else "key"
        raise InvalidConfig(f"{place} is incomplete; expected ${{provider:path:{what}}}")
    if provider.kind == DIRECTORY:
        if Path(key).name != key:
            raise InvalidConfig(f"{place}: {key} is not the name of a file in {path}")
        return _content(provider, str(Path(path) / key), place)
    try:
        values = parse_properties(_content(provider, path, place))
    except InvalidConfig as e:
        if str(e).startswith(place):
            raise
        # Its text may repeat the file's content.
        raise InvalidConfig(f"{place}: {path} is not a properties file") from None
    if key not in values:
        raise InvalidConfig(f"{place}: the file {path} has no key {key}")
    return values[key]


def _variable(provider: Provider, path: str | None, key: str, place: str) -> str:
    if path:
        raise InvalidConfig(
            f"{place}: variables of the environment have no path; expected ${{provider:NAME}}"
        )
    pattern = provider.parameters.get("allowlist.pattern")
    if pattern is not None and not re.fullmatch(pattern, key):
        raise InvalidConfig(f"{place}: allowlist.pattern={pattern} does not allow the variable {key}")
    if key not in os.environ:
        raise InvalidConfig(f"{place}: the environment variable {key} is not set in this process")
    return os.environ[key]


def _content(provider: Provider, path: str, place: str) -> str:
    listed = provider.parameters.get("allowed.paths", "").split(",")
    allowed = [part.strip() for part in listed if part.strip()]
    if allowed:
        full = Path(os.path.normpath(path))
        if not any(full.is_relative_to(os.path.normpath(part)) for part in allowed):
            raise InvalidConfig(f"{place}: allowed.paths={','.join(allowed)} does not allow {path}")
        if not full.is_file():
            raise InvalidConfig(f"{place}: there is no file {path}")
    else:
        full = found_file(path, place)
    try:
        with full.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidConfig(f"{place}: {path} is larger than {MAX_FILE_BYTES} bytes")
        return data.decode("utf-8-sig")
    except OSError as e:
        raise InvalidConfig(f"{place}: {path} cannot be read: {e.strerror or e}") from None
    except UnicodeDecodeError as e:
        raise InvalidConfig(f"{place}: {path} is not UTF-8 text: byte {e.start} cannot be decoded") from None
