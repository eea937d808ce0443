"""SCRAM credentials while the broker runs: made, described, removed, refused, and there after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import AuthenticationFailed, ErrorCode
from pyspark_kafkalog.protocol.api.logins import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from tests.support.protocol.raw_client import RawClient

ADMIN = 'PlainLoginModule required user_admin="admin-secret";'
PROPERTIES = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:0",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SECOND:SASL_PLAINTEXT"
    ),
    "listener.name.second.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": ADMIN,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with start_broker(PROPERTIES, data_dir=tmp_path_factory.mktemp("data")) as running:
        yield running


def admin(broker: EmbeddedBroker, mechanism: str, user: str, password: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.port_of('SASL_PLAINTEXT')}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
    )


def logs_in(broker: EmbeddedBroker, mechanism: str, user: str, password: str) -> bool:
    """By our own client, which hears at once that it may not; librdkafka asks until its time is over."""
    given = {
        "bootstrap.servers": f"127.0.0.1:{broker.port_of('SASL_PLAINTEXT')}",
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
        "sasl.username": user, "sasl.password": password,
    }  # fmt: skip
    with closing(Cluster(parse(ClientConfig, given, source="test"))) as cluster:
        try:
            cluster.metadata([])
        except AuthenticationFailed:
            return False
    return True


@pytest.mark.long("a broker for each kind of login")
def test_a_user_who_is_made_can_log_in_until_removed(broker: EmbeddedBroker) -> None:
    client = admin(broker, "PLAIN", "admin", "admin-secret")
    changes: list[Any] = [
        UserScramCredentialUpsertion("erin", ScramCredentialInfo(kind, iterations), b"erin's", b"salt")
        for kind, iterations in ((ScramMechanism.SCRAM_SHA_256, 4096), (ScramMechanism.SCRAM_SHA_512, 8192))
    ]
    for change in changes:  # librdkafka refuses both of one user in one request
        for future in client.alter_user_scram_credentials([change]).values():
            future.result(90)
    described = client.describe_user_scram_credentials(["erin"])["erin"].result(90)
    assert [(info.mechanism, info.iterations) for info in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096), (ScramMechanism.SCRAM_SHA_512, 8192)
    ]  # fmt: skip
    assert logs_in(broker, "SCRAM-SHA-256", "erin", "erin's")
    assert logs_in(broker, "SCRAM-SHA-512", "erin", "erin's")
    assert not logs_in(broker, "SCRAM-SHA-512", "erin", "wrong")
    broker.restart()
    assert logs_in(broker, "SCRAM-SHA-512", "erin", "erin's")
    client = admin(broker, "SCRAM-SHA-512", "erin", "erin's")
    deletion = UserScramCredentialDeletion("erin", ScramMechanism.SCRAM_SHA_256)
    client.alter_user_scram_credentials([deletion])["erin"].result(90)
    assert not logs_in(broker, "SCRAM-SHA-256", "erin", "erin's")
    assert logs_in(broker, "SCRAM-SHA-512", "erin", "erin's")
    text = Path(broker.data_dir / "security.json").read_text()
    assert "erin's" not in text


def challenge(broker: EmbeddedBroker, listener: str, user: str) -> str:
    """Salt and iterations that the broker sends to whoever says to be this user."""
    with RawClient(broker.port_of(listener)) as client:
        client.ask(SaslHandshakeRequest("SCRAM-SHA-512"), 1)
        token = client.ask(SaslAuthenticateRequest(f"n,,n={user},r=nonce".encode()), 2).auth_bytes
        return bytes(token).decode().partition(",")[2]


@pytest.mark.long("a broker, stopped and started; the unit tests have the rule")
def test_an_unknown_user_is_like_those_of_librdkafka_at_every_listener_and_after_a_restart(
    tmp_path: Path,
) -> None:
    with start_broker(PROPERTIES, data_dir=tmp_path) as broker:
        with RawClient(broker.port) as client:
            zoe = ScramCredentialUpsertion("zoe", 2, 8192, b"s" * 64, b"p" * 64)
            client.ask(AlterUserScramCredentialsRequest((), (zoe,)), 0)
        first = challenge(broker, "SASL_PLAINTEXT", "nobody")
        zoes = challenge(broker, "SASL_PLAINTEXT", "zoe")
        assert (len(first), first[-7:]) == (len(zoes), zoes[-7:]) == (2 + 88 + 7, ",i=8192")
        assert challenge(broker, "SECOND", "nobody") == first
        assert challenge(broker, "SECOND", "somebody") != first
        broker.restart()
        assert challenge(broker, "SECOND", "nobody") == first


def upsert(name: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name, mechanism, iterations, b"salt", b"s" * 32)


def test_what_is_refused_is_refused_for_its_user_alone(broker: EmbeddedBroker) -> None:
    request = AlterUserScramCredentialsRequest(
        (ScramCredentialDeletion("nobody", 1), ScramCredentialDeletion("both", 2)),
        (
            upsert("few", iterations=4095), upsert("many", iterations=16_385), upsert("odd", mechanism=3),
            upsert("twice"), upsert("twice"), upsert(""), upsert("good"), upsert("good", mechanism=2),
            upsert("both"), upsert("none", mechanism=0),
        ),
    )  # fmt: skip
    with RawClient(broker.port) as client:
        results = {r.user: (r.error_code, r.error_message) for r in client.ask(request, 0).results}
        unacceptable, missing = ErrorCode.UNACCEPTABLE_CREDENTIAL, ErrorCode.RESOURCE_NOT_FOUND
        unknown = (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        gone = (missing, "Attempt to delete a user credential that does not exist")
        assert results == {
            "nobody": gone, "both": gone, "few": (unacceptable, "Too few iterations"),
            "many": (unacceptable, "Too many iterations"), "odd": unknown, "none": unknown,
            "twice": (
                ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
            ),
            "": (unacceptable, "Username must not be empty"), "good": (ErrorCode.NONE, None),
        }  # fmt: skip
        told = client.ask(DescribeUserScramCredentialsRequest(), 0).results
        good = next(r for r in told if r.user == "good")
        assert [(i.mechanism, i.iterations) for i in good.credential_infos] == [
            (1, 4096), (2, 4096)
        ]  # fmt: skip
        assert {r.user for r in told}.isdisjoint(results.keys() - {"good"})
        asked = DescribeUserScramCredentialsRequest((UserName("x"), UserName("good"), UserName("good")))
        assert [(r.user, r.error_code) for r in client.ask(asked, 0).results] == [
            ("x", missing), ("good", ErrorCode.DUPLICATE_RESOURCE)
        ]  # fmt: skip
