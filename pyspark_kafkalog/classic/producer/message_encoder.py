"""Encoders of events, and finding classes named in a configuration."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from pyspark_kafkalog.errors import InvalidConfig


class Encoder(Protocol):
    """Makes the payload of a message from an event. May be called by several threads."""

    def to_message(self, event: Any) -> bytes:
        """The payload. Its errors are reported to the event's sender."""
        ...


class DefaultEncoder:
    """*Thread-safe.* Events are bytes, used unchanged."""

    def to_message(self, event: Any) -> bytes:
        """``event``, which must be bytes. Raises `TypeError`."""
        if isinstance(event, bytes):
            return event
        if isinstance(event, (bytearray, memoryview)):
            return bytes(event)
        raise TypeError(
            f"an event must be bytes, not {type(event).__name__}: set a serializer.class for other types"
        )


class StringEncoder:
    """*Thread-safe.* Events are text; messages are UTF-8."""

    def to_message(self, event: Any) -> bytes:
        """``event`` as UTF-8. Raises `TypeError` for other types."""
        if not isinstance(event, str):
            raise TypeError(f"an event must be str, not {type(event).__name__}")
        return event.encode()


def key_bytes(key: Any) -> bytes:
    """A key for today's wire: bytes, or str as UTF-8. Raises `TypeError`."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"on today's wire a key must be bytes or str, not {type(key).__name__}")


ENCODERS: dict[str, type] = {
    "kafka.serializer.DefaultEncoder": DefaultEncoder,
    "kafka.serializer.StringEncoder": StringEncoder,
}
"""Those that the first generation's configurations name."""


def new_instance(name: str, known: dict[str, type], source: str) -> Any:
    """An instance of the class ``name``: one of ``known``, or Python's ``package.module.Class``."""
    cls: Any = known.get(name)
    if cls is None:
        module, _, last = name.rpartition(".")
        try:
            cls = getattr(import_module(module), last)
        except (ImportError, AttributeError, ValueError) as e:
            names = "".join(f", {java}" for java in known)
            raise InvalidConfig(
                f"{source}={name} is not a class: {e}; allowed: package.module.Class{names}"
            ) from e
    try:
        return cls()
    except TypeError as e:
        raise InvalidConfig(f"{source}={name} cannot be made without arguments: {e}") from e
