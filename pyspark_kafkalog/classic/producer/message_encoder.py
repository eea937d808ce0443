"""What makes messages of events, and how classes named in a configuration are found."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from pyspark_kafkalog.errors import InvalidConfig


class Encoder(Protocol):
    """Makes the payload of a message out of an event. May be called by several threads."""

    def to_message(self, event: Any) -> bytes:
        """The payload. What it raises is told to whoever sent the event."""
        ...


class DefaultEncoder:
    """*Thread-safe.* Does nothing: events are bytes."""

    def to_message(self, event: Any) -> bytes:
        """``event``, which must be bytes. Raises `TypeError`."""
        if isinstance(event, bytes):
            return event
        if isinstance(event, (bytearray, memoryview)):
            return bytes(event)
        raise TypeError(
            f"an event must be bytes, not {type(event).__name__}: a serializer.class makes bytes of others"
        )


class StringEncoder:
    """*Thread-safe.* Events are text; messages are UTF-8."""

    def to_message(self, event: Any) -> bytes:
        """``event`` as UTF-8. Raises `TypeError` for what is no text."""
        if not isinstance(event, str):
            raise TypeError(f"an event must be str, not {type(event).__name__}")
        return event.encode()


def key_bytes(key: Any) -> bytes:
    """A key as today's wire carries it: bytes, or text as UTF-8. Raises `TypeError`."""
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


def made(name: str, known: dict[str, type], source: str) -> Any:
    """An instance of the class ``name``: one of ``known``, or ``package.module.Class`` of Python.

    Raises:
        InvalidConfig: there is none, or it cannot be made without arguments; names the property ``source``.
    """
    cls: Any = known.get(name)
    if cls is None:
        module, _, last = name.rpartition(".")
        try:
            cls = getattr(import_module(module), last)
        except (ImportError, AttributeError, ValueError) as e:
            names = "".join(f", {java}" for java in known)
            raise InvalidConfig(
                f"{source}={name} is no class: {e}; allowed: package.module.Class{names}"
            ) from e
    try:
        return cls()
    except TypeError as e:
        raise InvalidConfig(f"{source}={name} cannot be made without arguments: {e}") from e
