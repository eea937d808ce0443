"""Which API is served in which versions, and by which function: filled by the `handles` decorator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark_kafkalog.protocol.exchange import ApiKey

if TYPE_CHECKING:
    from broker.network.transmission import Part
    from broker.server.context import Context


class CloseConnection(Exception):
    """A handler raises this where only the end of the connection can tell the client what went wrong."""


class _Later:
    """The type of `LATER` alone."""

    def __repr__(self) -> str:
        return "LATER"


LATER = _Later()
"""A handler returns this where it will answer through its `Context` itself, now or from another thread."""

Handler = Callable[[Any, "Context"], Any]
"""``(request, context) -> response``, or None for no answer, or `LATER`; may raise `CloseConnection`.

Where it takes longer than some ms the function is a generator, a `pyspark_kafkalog.steps.Steps` of that: it
is taken on in turns with other connections' requests.
"""

ShortCut = Callable[[bytearray, int, "Context"], "Sequence[Part] | None"]
"""``(frame, position of the body, context) -> answer``, or None where the handler is to have the request."""

_H = TypeVar("_H", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Registration:
    """One API as this broker serves it, and says so in ApiVersions. The range of versions is inclusive.

    A ``short_cut`` is asked before the request is decoded, and does the same as the handler where it does it.
    """

    key: ApiKey
    versions: tuple[int, int]
    handler: Handler
    short_cut: ShortCut | None = None


_registrations: dict[ApiKey, Registration] = {}

REGISTRY: Mapping[ApiKey, Registration] = MappingProxyType(_registrations)
"""Filled when `broker.server.handlers` is imported; read-only after that."""


def handles(
    key: ApiKey,
    *,
    versions: tuple[int, int],
    short_cut: ShortCut | None = None,
) -> Callable[[_H], _H]:
    """Register the decorated function as the handler of ``key``.

    Raises:
        ValueError: the key has a handler already (a mistake in the code).
    """

    def register(handler: _H) -> _H:
        if key in _registrations:
            raise ValueError(f"{key.name} has a handler already")
        _registrations[key] = Registration(key, versions, handler, short_cut)
        return handler

    return register
