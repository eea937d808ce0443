"""Our broker as one of an old release: what that did not speak ends the connection, ApiVersions included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from msgspec import structs

from kafkalog_broker.embedded import EmbeddedBroker, run_child, start_broker
from pyspark_kafkalog.protocol.exchange import APIS, RELEASES


@contextmanager
def broker_of(
    release: str, properties: Mapping[str, object], data_dir: Path | None = None
) -> Iterator[EmbeddedBroker]:
    """One that serves what `RELEASES` has of ``release``, and nothing else."""
    child = f"from {__name__} import run_as; run_as({release!r})"
    with patch("kafkalog_broker.embedded._CHILD", child):
        started = start_broker(dict(properties), data_dir=data_dir)
    with started:
        yield started


def run_as(release: str) -> None:
    """What the broker's process runs."""
    import kafkalog_broker.server.handlers  # noqa: F401  (fills the registry)
    from kafkalog_broker.server.dispatch import REGISTRY

    spoken = {key: versions for key, versions in RELEASES[release].items() if key in REGISTRY}
    served = {
        key: structs.replace(REGISTRY[key], versions=tuple(versions)) for key, versions in spoken.items()
    }
    changed = {key: replace(APIS[key], versions=versions) for key, versions in spoken.items()}
    known = {**APIS, **changed}
    with (
        patch("kafkalog_broker.server.dispatch.REGISTRY", served),
        patch("kafkalog_broker.server.handlers.metadata.REGISTRY", served),
        patch("kafkalog_broker.security.authentication.APIS", known),
    ):
        run_child()
