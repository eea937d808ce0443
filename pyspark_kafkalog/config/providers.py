"""Secrets kept elsewhere: ``config.providers``, and references such as ``${env:NAME}``. Pure.

A reference is ``${provider:path:key}`` or ``${provider:key}``. Configurations keep it as written;
`pyspark_kafkalog.security.references` replaces it. Source: KIP-297, 421, 887 and 993.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_kafkalog.config.definition import Config, Property, describe, prop
from pyspark_kafkalog.errors import InvalidConfig

ENV, FILE, DIRECTORY = "env", "file", "directory"

REFERENCE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")
"""Groups 1, 3 and 4 are provider, path (or None) and key."""

_CLASSES = {"EnvVarConfigProvider": ENV, "FileConfigProvider": FILE, "DirectoryConfigProvider": DIRECTORY}
_PARAMETERS = {ENV: ("allowlist.pattern",), FILE: ("allowed.paths",), DIRECTORY: ("allowed.paths",)}
_RESOLVED = ("ssl.", "sasl.", "zookeeper.ssl.", "zookeeper.sasl.")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Provider:
    """One entry of ``config.providers``."""

    kind: str
    """`ENV`, `FILE` or `DIRECTORY`."""
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class ProvidersConfig(Config):
    """Where secrets that other properties refer to are kept."""

    config_providers: tuple[str, ...] = prop(
        "config.providers", (), tuple, section="Secrets kept elsewhere",
        doc="Names of the providers that resolve `${name:path:key}` in `ssl.*`, `sasl.*`, `zookeeper.ssl.*` "
            "and `zookeeper.sasl.*` when a connection is made: `env` (`${env:NAME}`), `file` "
            "(`${file:/path:key}`, a properties file), `directory` (`${directory:/path:file}`, a file's "
            "content). Other names need a class.",
    )  # fmt: skip
    config_provider_settings: str | None = prop(
        "config.providers.*", None, str,
        doc="`config.providers.NAME.class`: Kafka's EnvVarConfigProvider, FileConfigProvider or "
            "DirectoryConfigProvider. `config.providers.NAME.param.allowed.paths`: directories and files "
            "that may be read. `config.providers.NAME.param.allowlist.pattern`: regular expression for the "
            "variables that may be read.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        named = self.providers()
        for item in describe(type(self)):
            value = getattr(self, item.field)
            if isinstance(value, str) and "${" in value:
                _check(item, {found[1] for found in REFERENCE.finditer(value)}, named)

    def providers(self) -> dict[str, Provider]:
        """Providers by name. Raises `InvalidConfig`."""
        settings = dict(
            line.split("=", 1) for line in (self.config_provider_settings or "").splitlines() if "=" in line
        )
        # Spark passes option names in lower case.
        settings = {name.lower(): value.strip() for name, value in settings.items()}
        return {name: _provider(name, settings) for name in self.config_providers}


def resolvable(item: Property) -> bool:
    """Whether the property may hold references: text that is used only when connecting."""
    return item.kind is str and item.check is None and item.name.startswith(_RESOLVED)


def _check(item: Property, used: set[str], named: Mapping[str, Any]) -> None:
    if used & named.keys() and not resolvable(item):
        raise InvalidConfig(
            f"{item.name}: config.providers are not asked for its value; allowed: in text of "
            f"{', '.join(f'{prefix}*' for prefix in _RESOLVED)}"
        )
    for name in sorted(used & {*_PARAMETERS} - named.keys()) if resolvable(item) else ():
        logger.warning(
            "%s: ${%s:...} stays as it is: config.providers does not name %s", item.name, name, name
        )


def _provider(name: str, settings: Mapping[str, str]) -> Provider:
    prefix = f"{name.lower()}."
    class_name = settings.get(f"{prefix}class")
    kind = _CLASSES.get(class_name.rpartition(".")[2]) if class_name else name
    if kind not in _PARAMETERS:
        given = f"={class_name} cannot be used from Python" if class_name else " is missing"
        raise InvalidConfig(f"config.providers.{name}.class{given}; allowed: {', '.join(_CLASSES)}")
    of_parameters = f"{prefix}param."
    given_parameters = {
        key[len(of_parameters) :]: value for key, value in settings.items() if key.startswith(of_parameters)
    }
    for parameter in given_parameters:
        if parameter not in _PARAMETERS[kind]:
            # Ignoring it could permit what it was meant to forbid.
            raise InvalidConfig(
                f"config.providers.{name}.param.{parameter} is unknown; allowed: "
                f"{', '.join(_PARAMETERS[kind])}"
            )
    pattern = given_parameters.get("allowlist.pattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as e:
            raise InvalidConfig(
                f"config.providers.{name}.param.allowlist.pattern={pattern} is not a regular expression: {e}"
            ) from None
    return Provider(kind, given_parameters)
