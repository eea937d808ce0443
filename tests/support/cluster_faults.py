"""What befalls the brokers of a cluster and its ZooKeeper, without waiting for a session to run out."""

from __future__ import annotations

from kafkalog_broker.embedded import EmbeddedCluster
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest
from tests.support.protocol.raw_client import RawClient
from tests.support.until import until
from tests.support.zookeeper import PATIENT_MS, expire_broker, patient_session

LONG_SESSIONS = {"zookeeper.session.timeout.ms": PATIENT_MS}
"""For a cluster whose sessions with ZooKeeper end when a test says so, and not because something was slow."""


def end_session(cluster: EmbeddedCluster, broker: int) -> None:
    """As if the broker had not been heard of for the length of its session. It must be registered, or be
    about to be.
    """
    with patient_session(cluster.zookeeper_connect) as session:
        until(lambda: str(broker) in session.children("/kafka/brokers/ids"))
    expire_broker(cluster.zookeeper_connect, broker)


def miss(cluster: EmbeddedCluster, broker: int) -> None:
    """The same for a broker that does not run; until all others know that it is gone."""
    end_session(cluster, broker)
    for number, other in cluster.brokers.items():
        if number != broker:
            with RawClient(other.port) as client:
                until(lambda client=client: not _lists(client, broker))  # type: ignore[misc]


def _lists(client: RawClient, broker: int) -> bool:
    return any(each.node_id == broker for each in client.ask(MetadataRequest(())).brokers)
