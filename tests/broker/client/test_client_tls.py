"""Connections over TLS at the bundled broker: stores of each kind, and the words of each refusal."""

from __future__ import annotations

import pickle
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog import NewTopic, create_topics
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.consumer.consumer import Consumer
from pyspark_kafkalog.errors import AuthenticationFailed, InvalidConfig, KafkaError
from pyspark_kafkalog.producer.producer import Producer
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest
from pyspark_kafkalog.security.tls import client_context
from pyspark_kafkalog.types import TopicPartition
from tests.support.manual_clock import ManualClock
from tests.support.network.certificates import Authority

LISTENERS = ("SSL", "MUTUAL", "OTHER", "PLAIN")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority.made(tmp_path_factory.mktemp("tls"))
    made.issue("server", "127.0.0.1", "localhost")
    made.issue("other", "elsewhere.example")
    made.issue("alice", "alice.example", common_name="alice")
    return made


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[EmbeddedBroker]:
    names = {"SSL": "SSL", "MUTUAL": "SSL", "OTHER": "SSL", "PLAIN": "PLAINTEXT"}
    properties = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in names.items()),
        "inter.broker.listener.name": "PLAIN",
        "ssl.keystore.location": authority.directory / "server.pem",
        "ssl.truststore.location": authority.file,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.other.ssl.keystore.location": authority.directory / "other.pem",
    }
    with start_broker(properties) as started:
        yield started


def port(broker: EmbeddedBroker, listener: str) -> int:
    return broker.port_of(listener)


def config(broker: EmbeddedBroker, listener: str, **given: object) -> ClientConfig:
    address = f"127.0.0.1:{port(broker, listener)}"
    dotted = {name.replace("_", "."): value for name, value in given.items()}
    properties = {"bootstrap.servers": address, "security.protocol": "SSL", **dotted}
    return parse(ClientConfig, properties, source="test")


def ask(configured: ClientConfig) -> int:
    ((host, number),) = configured.bootstrap_addresses()
    connection = Connection(host, number, configured)
    try:
        return len(connection.request(MetadataRequest()).brokers)
    finally:
        connection.close()


def test_the_authority_from_a_file_or_from_text(broker: EmbeddedBroker, authority: Authority) -> None:
    assert ask(config(broker, "SSL", ssl_truststore_location=str(authority.file))) == 1
    text = authority.file.read_text().replace("\n", " ")
    assert ask(config(broker, "SSL", ssl_truststore_certificates=text)) == 1


def test_the_brokers_own_certificate_may_be_what_is_trusted(
    broker: EmbeddedBroker, authority: Authority
) -> None:
    server = ssl.get_server_certificate(("127.0.0.1", port(broker, "SSL")))
    assert ask(config(broker, "SSL", ssl_ca_pem=server)) == 1


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_clients_certificate(broker: EmbeddedBroker, authority: Authority, version: str) -> None:
    common = {"ssl_ca_location": str(authority.file), "ssl_enabled_protocols": version}
    own = str(authority.directory / "alice.pem")
    assert ask(config(broker, "MUTUAL", ssl_keystore_location=own, **common)) == 1
    text = Path(own).read_text()
    at = text.index("-----BEGIN CERT")
    key, chain = authority.directory / "alice.key", authority.directory / "alice.crt"
    key.write_text(text[:at])
    chain.write_text(text[at:])
    files = {"ssl_certificate_location": str(chain), "ssl_key_location": str(key)}
    assert ask(config(broker, "MUTUAL", **files, **common)) == 1
    with pytest.raises(
        AuthenticationFailed, match=r"wants a certificate of this client: see ssl\.keystore\."
    ):
        ask(config(broker, "MUTUAL", **common))


def test_records_of_all_sizes_come_back(broker: EmbeddedBroker, authority: Authority) -> None:
    given = {
        "bootstrap.servers": f"127.0.0.1:{port(broker, 'SSL')}",
        "security.protocol": "SSL",
        "ssl.truststore.location": str(authority.file),
    }
    values = [bytes([size % 251]) * size for size in (0, 1, 16_000, 16_384, 70_000, 900_000)] * 3
    with Producer({**given, "batch.size": 100_000}) as producer:
        for value in values:
            producer.send("sizes", value, partition=0)
        producer.flush()
    with Consumer(given) as consumer:
        consumer.assign([TopicPartition("sizes", 0)])
        consumer.seek_to_beginning()
        found: list[bytes | None] = []
        while len(found) < len(values):
            found += [record.value for record in consumer.poll(5)]
    assert found == values


@pytest.mark.parametrize(
    ("listener", "given", "said"),
    [
        ("SSL", {}, r"unknown authority.*the system's authorities; set ssl\.truststore\.location"),
        (
            "OTHER",
            {"ssl_truststore_location": "CA"},
            r"another host.*ssl\.endpoint\.identification\.algorithm",
        ),
        (
            "SSL",
            {"security_protocol": "PLAINTEXT"},
            r"this port speaks TLS: set security\.protocol to SSL or SASL_SSL",
        ),
        (
            "PLAIN",
            {"ssl_truststore_location": "CA"},
            r"this port does not speak TLS: set security\.protocol to PLAINTEXT$",
        ),
    ],
)
def test_a_refusal_names_the_property(
    broker: EmbeddedBroker, authority: Authority, listener: str, given: Mapping[str, str], said: str
) -> None:
    given = {name: str(authority.file) if value == "CA" else value for name, value in given.items()}
    with pytest.raises(KafkaError, match=said):
        ask(config(broker, listener, **given))


def test_a_wrong_authority_is_final(broker: EmbeddedBroker, tmp_path: Path) -> None:
    other = Authority.made(tmp_path)
    cluster = Cluster(config(broker, "SSL", ssl_truststore_location=str(other.file)))
    with pytest.raises(AuthenticationFailed, match=rf"ssl\.truststore\.location={other.file}"):
        cluster.metadata([])


def test_without_identification_the_authority_still_counts(
    broker: EmbeddedBroker, authority: Authority, tmp_path: Path
) -> None:
    anybody = {"ssl_endpoint_identification_algorithm": ""}
    assert ask(config(broker, "OTHER", ssl_truststore_location=str(authority.file), **anybody)) == 1
    other = Authority.made(tmp_path)
    with pytest.raises(AuthenticationFailed, match="unknown authority"):
        ask(config(broker, "OTHER", ssl_truststore_location=str(other.file), **anybody))


def test_a_context_is_made_once_until_its_files_change(authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(authority.file.read_bytes())
    properties = {"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.ca.location": str(file)}
    configured = parse(ClientConfig, properties, source="test")
    first = client_context(configured, str)
    assert client_context(pickle.loads(pickle.dumps(configured)), str) is first
    file.write_bytes(authority.file.read_bytes() * 2)
    assert client_context(configured, str) is not first


def test_a_missing_file_and_a_foreign_key(authority: Authority, tmp_path: Path) -> None:
    def context(**given: str) -> None:
        properties = {name.replace("_", "."): value for name, value in given.items()}
        common = {"bootstrap.servers": "a:1", "security.protocol": "SSL"}
        client_context(
            parse(ClientConfig, {**common, **properties}, source="t"), lambda name: f"kafka.{name}"
        )

    with pytest.raises(InvalidConfig, match=r"kafka\.ssl\.truststore\.location: there is no file /nowhere"):
        context(ssl_truststore_location="/nowhere")
    with pytest.raises(InvalidConfig, match=r"kafka\.ssl\.keystore\.certificate\.chain is missing"):
        context(ssl_keystore_key="x")
    keys, chains = [], []
    for name in ("alice", "server"):
        text = (authority.directory / f"{name}.pem").read_text()
        at = text.index("-----BEGIN CERT")
        keys.append(text[:at])
        chains.append(text[at:])
    with pytest.raises(InvalidConfig, match=r"kafka\.ssl\.keystore\.key: the private key does not belong"):
        context(ssl_keystore_key=keys[0], ssl_keystore_certificate_chain=chains[1])
    with pytest.raises(InvalidConfig, match=r"kafka\.ssl\.cipher\.suites=NO_SUCH: OpenSSL knows none"):
        context(ssl_cipher_suites="NO_SUCH")


def test_an_admin_call_takes_properties_too(broker: EmbeddedBroker, authority: Authority) -> None:
    where = {
        "bootstrap.servers": f"127.0.0.1:{port(broker, 'SSL')}",
        "security.protocol": "SSL",
        "ssl.truststore.location": str(authority.file),
    }
    create_topics(where, [NewTopic("by-properties", 3)])
    with closing(Cluster(parse(ClientConfig, where, source="test"))) as cluster:
        assert cluster.metadata(["by-properties"]).topics["by-properties"] is not None


@pytest.mark.parametrize(("protocol", "listener"), [("PLAINTEXT", "SSL"), ("SSL", "PLAIN")])
def test_the_wrong_protocol_is_reported_soon(broker: EmbeddedBroker, protocol: str, listener: str) -> None:
    given = {"bootstrap.servers": f"127.0.0.1:{port(broker, listener)}", "security.protocol": protocol}
    clock = ManualClock()
    began = clock.monotonic()
    with (
        closing(Cluster(parse(ClientConfig, given, source="test"), clock=clock)) as cluster,
        pytest.raises(AuthenticationFailed, match=r"set security\.protocol to"),
    ):
        create_topics(cluster, [NewTopic("t", 1)])
    assert clock.monotonic() == began  # not tried again
