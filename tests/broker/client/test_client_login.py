"""Logins of a connection at a broker that answers as told; renewed before they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.retry import Deadline
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import (
    AuthenticationFailed,
    ConnectionLost,
    ErrorCode,
    IllegalSaslState,
    KafkaError,
    UnsupportedSaslMechanism,
)
from pyspark_kafkalog.protocol.api.logins import SaslAuthenticateResponse, SaslHandshakeResponse
from pyspark_kafkalog.protocol.api.metadata import MetadataRequest
from pyspark_kafkalog.protocol.exchange import ApiKey
from tests.support.client.sasl_scripts import accept_logins, refuse_logins, script_scram
from tests.support.client.scripted_broker import Layout, ScriptedBroker
from tests.support.client.scripted_server import HOST, Close, Silence
from tests.support.manual_clock import ManualClock
from tests.support.until import until

LIFETIME_MS = 100_000
LOGIN = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(Layout(leaders={"t": {0: 0}})) as scripted:
        yield scripted
        for connection in _connections:
            connection.close()
        _connections.clear()


_connections: list[Connection] = []


def config(broker: ScriptedBroker, **changes: str) -> ClientConfig:
    given = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "alice",
        "sasl_password": "alice-secret",
        "servers_option": "kafka.bootstrap.servers",
    } | changes
    return ClientConfig(bootstrap_servers=broker.address, **given)  # type: ignore[arg-type]


def connect(broker: ScriptedBroker, clock: ManualClock | None = None, **changes: str) -> Connection:
    connection = Connection(HOST, broker.port, config(broker, **changes), clock=clock or ManualClock())
    _connections.append(connection)
    return connection


def asked(broker: ScriptedBroker) -> list[ApiKey]:
    return [ApiKey(header.api_key) for header, _ in broker.requests]


def test_a_connection_logs_in_before_its_first_request(broker: ScriptedBroker) -> None:
    accept_logins(broker)
    connect(broker).request(MetadataRequest())
    assert asked(broker) == [ApiKey.API_VERSIONS, *LOGIN, ApiKey.METADATA]
    assert broker.requests[1][0].api_version == 1
    assert broker.received(ApiKey.SASL_HANDSHAKE)[0].mechanism == "PLAIN"
    assert broker.received(ApiKey.SASL_AUTHENTICATE)[0].auth_bytes == b"\0alice\0alice-secret"


def test_scram_takes_two_messages(broker: ScriptedBroker) -> None:
    script_scram(broker, "SCRAM-SHA-256", "alice-secret")
    connect(broker, sasl_mechanism="SCRAM-SHA-256").request(MetadataRequest())
    assert asked(broker)[1:] == [*LOGIN, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA]


def test_a_server_that_does_not_know_the_password_gets_no_request(broker: ScriptedBroker) -> None:
    script_scram(broker, "SCRAM-SHA-256", "alice-secret", server_key=b"guess")
    with pytest.raises(AuthenticationFailed, match="does not know the password"):
        connect(broker, sasl_mechanism="SCRAM-SHA-256")


def refused_mechanism(broker: ScriptedBroker) -> None:
    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    broker.default(ApiKey.SASL_HANDSHAKE, SaslHandshakeResponse(code, ("GSSAPI", "SCRAM-SHA-512")))


def no_sasl(broker: ScriptedBroker) -> None:
    broker.default(ApiKey.SASL_HANDSHAKE, SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE))


def wrong_password(broker: ScriptedBroker) -> None:
    refuse_logins(broker, "Authentication failed: alice-secret is wrong")


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (
            refused_mechanism,
            UnsupportedSaslMechanism,
            "does not support PLAIN; it supports GSSAPI, SCRAM-SHA-512. Set kafka.sasl.mechanism",
        ),
        (
            no_sasl,
            IllegalSaslState,
            "has no SASL: connect to another port, or set kafka.security.protocol to",
        ),
        (
            wrong_password,
            AuthenticationFailed,
            "Authentication failed: *** is wrong; check kafka.sasl.username and kafka.sasl.password",
        ),
    ],
)
def test_a_refused_login_is_final(
    broker: ScriptedBroker, script: object, error: type[KafkaError], words: str
) -> None:
    script(broker)  # type: ignore[operator]
    with pytest.raises(error) as e:
        Cluster(config(broker)).metadata(["t"])
    assert words in str(e.value)
    assert "alice-secret" not in str(e.value)
    assert len(broker.received(ApiKey.SASL_HANDSHAKE)) == 1


def test_a_refused_token_is_confirmed_to_learn_why(broker: ScriptedBroker, tmp_path) -> None:
    accept_logins(broker)
    (tmp_path / "token").write_text("abc")
    broker.script(
        ApiKey.SASL_AUTHENTICATE,
        SaslAuthenticateResponse(auth_bytes=b'{"status":"invalid_token"}'),
        SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, '{"status":"invalid_token"}'),
    )
    with pytest.raises(AuthenticationFailed, match=r"invalid_token.*check kafka\.sasl\.oauthbearer\.token"):
        connect(
            broker,
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=f"file:{tmp_path / 'token'}",
        )
    assert [r.auth_bytes for r in broker.received(ApiKey.SASL_AUTHENTICATE)][1:] == [b"\x01"]


def test_a_close_after_api_versions_may_mean_a_login(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.METADATA, Close())
    connection = connect(broker, security_protocol="PLAINTEXT")
    with pytest.raises(ConnectionLost, match=r"wants a login: then set kafka\.security\.protocol to SASL_"):
        connection.request(MetadataRequest())


def test_a_missing_login_is_said_after_a_few_closed_connections(broker: ScriptedBroker) -> None:
    clock = ManualClock()
    with closing(Cluster(ClientConfig(bootstrap_servers=broker.address), clock=clock)) as cluster:
        for _ in range(2):  # a broker that restarts
            broker.script(ApiKey.METADATA, *[Close()] * 5)
            assert cluster.metadata(["t"], refresh=True).topics["t"].name == "t"
            cluster.close()
        broker.default(ApiKey.METADATA, Close())
        began = clock.monotonic()
        for patience in (1, 600):  # look-ups share what they saw
            deadline = Deadline.after(patience, clock)
            with pytest.raises(KafkaError, match=r"wants a login: then set security\.protocol to SASL_") as e:
                cluster.metadata(["t"], refresh=True, deadline=deadline)
        assert isinstance(e.value, AuthenticationFailed)
        assert clock.monotonic() - began < 10
    assert len(broker.received(ApiKey.METADATA)) == 2 * 6 + 6


def test_a_slow_answer_after_api_versions_does_not(broker: ScriptedBroker) -> None:
    broker.script(ApiKey.METADATA, Silence())
    connection = connect(broker, security_protocol="PLAINTEXT")
    with pytest.raises(ConnectionLost) as e:
        connection.request(MetadataRequest(), deadline=Deadline.after(0.05))
    assert str(e.value) == f"{broker.address}: no answer in time"


def test_a_later_close_does_not(broker: ScriptedBroker) -> None:
    connection = connect(broker, security_protocol="PLAINTEXT")
    connection.request(MetadataRequest())
    broker.script(ApiKey.METADATA, Close())
    with pytest.raises(ConnectionLost) as e:
        connection.request(MetadataRequest())
    assert "login" not in str(e.value)


def test_a_login_is_renewed_before_it_ends(broker: ScriptedBroker) -> None:
    accept_logins(broker, lifetime_ms=LIFETIME_MS)
    clock = ManualClock()
    connection = connect(broker, clock)
    clock.advance(0.84 * LIFETIME_MS / 1000)
    connection.request(MetadataRequest())
    assert asked(broker)[1:] == [*LOGIN, ApiKey.METADATA]
    clock.advance(0.12 * LIFETIME_MS / 1000)
    connection.request(MetadataRequest())
    connection.request(MetadataRequest())
    assert asked(broker)[4:] == [*LOGIN, ApiKey.METADATA, ApiKey.METADATA]
    assert broker.connection_count == 1


def test_requests_in_flight_are_answered_before_a_renewed_login(broker: ScriptedBroker) -> None:
    accept_logins(broker, lifetime_ms=LIFETIME_MS)
    clock = ManualClock()
    connection = connect(broker, clock)
    before = connection.send(MetadataRequest())
    clock.advance(0.96 * LIFETIME_MS / 1000)
    after = connection.send(MetadataRequest())
    assert connection.in_flight == 3  # and the handshake
    assert connection.receive(after).cluster_id == "scripted"
    assert connection.receive(before).cluster_id == "scripted"
    assert asked(broker)[3:] == [ApiKey.METADATA, *LOGIN, ApiKey.METADATA]


def test_requests_that_do_not_wait_are_held_back_until_the_login_is_renewed(broker: ScriptedBroker) -> None:
    accept_logins(broker, lifetime_ms=LIFETIME_MS)
    clock = ManualClock()
    connection = connect(broker, clock)
    clock.advance(0.96 * LIFETIME_MS / 1000)
    tickets = [connection.send_now(MetadataRequest()) for _ in range(2)]
    assert (connection.unsent, connection.transport.unsent) == (True, False)
    answers: list[object] = []

    def answered() -> bool:
        answers.extend(ticket for ticket, _ in connection.receive_now())
        return len(answers) >= 2

    until(answered)
    assert answers == tickets
    assert not connection.unsent
    assert asked(broker)[3:] == [*LOGIN, ApiKey.METADATA, ApiKey.METADATA]


def test_a_refused_renewal_ends_the_connection_for_good(broker: ScriptedBroker) -> None:
    accept_logins(broker, lifetime_ms=LIFETIME_MS)
    clock = ManualClock()
    connection = connect(broker, clock)
    refuse_logins(broker, "Cannot change principals")
    clock.advance(0.96 * LIFETIME_MS / 1000)
    with pytest.raises(AuthenticationFailed, match="Cannot change principals") as e:
        connection.request(MetadataRequest())
    assert (connection.broken, e.value.retriable) == (True, False)
