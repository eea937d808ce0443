"""The bundled broker: ``with kafkalog_broker.start_broker() as b:`` runs one in its own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalog_broker.embedded import EmbeddedBroker, EmbeddedCluster, start_broker, start_cluster

__all__ = ["EmbeddedBroker", "EmbeddedCluster", "start_broker", "start_cluster"]

if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Load exports on first use: the broker's own process needs none."""
        if name in __all__:
            from kafkalog_broker import embedded

            return getattr(embedded, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
