"""The bundled broker: ``with kafkalog_broker.start_broker() as b:`` gives one in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalog_broker.embedded import EmbeddedBroker, EmbeddedCluster, start_broker, start_cluster

__all__ = ["EmbeddedBroker", "EmbeddedCluster", "start_broker", "start_cluster"]

if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        """Load what is exported when it is first asked for: the broker's own process needs none of it."""
        if name in __all__:
            from kafkalog_broker import embedded

            return getattr(embedded, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
