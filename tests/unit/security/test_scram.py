"""SCRAM with the bytes of a login of librdkafka at Apache Kafka, and what either side refuses."""

from __future__ import annotations

import base64

import pytest

from pyspark_kafkalog.security.scram import ScramClient, ScramCredential, ScramError, ScramServer

NONCE = "mvKD{Adn~a}@p~us2gwZL}_Le7J_VT>8"
SERVER_NONCE = "tdsyi61bzwek2dpud2cqz26vs"
SALT = base64.b64decode("bTRhMTdnMmEwc2VlMGdzaTV0cWJudHo4dg==")
CLIENT_FIRST = f"n,,n=alice,r={NONCE}".encode()
SERVER_FIRST = f"r={NONCE}{SERVER_NONCE},s=bTRhMTdnMmEwc2VlMGdzaTV0cWJudHo4dg==,i=8192".encode()
CLIENT_FINAL = f"c=biws,r={NONCE}{SERVER_NONCE},p=EwAgWQTiX5Ye6iztlwnrPfKaSnvhsuQOH4B8PFdVBFA=".encode()
SERVER_FINAL = b"v=4b20Eueu5MlJT9RFQGK64oP3g9v1CNqhzXisHh1Ukes="
KEPT = (
    "salt=bTRhMTdnMmEwc2VlMGdzaTV0cWJudHo4dg==,stored_key=rRNYQdijgLSy4MqJdego/J82JFCldkVQDd5JXbrN/dE=,"
    "server_key=zJ5tWf3S99/h0XSFnsrove+DIiYIF0nOSAByJn38fMc=,iterations=8192"
)


def client(**changes: object) -> ScramClient:
    given = {"user": "alice", "password": "alice-secret", "nonce": NONCE} | changes
    return ScramClient("SCRAM-SHA-256", **given)  # type: ignore[arg-type]


def test_the_client_sends_what_librdkafka_sent() -> None:
    scram = client()
    assert scram.first() == CLIENT_FIRST
    assert scram.final(SERVER_FIRST) == CLIENT_FINAL
    scram.verify(SERVER_FINAL)


def test_the_server_sends_what_kafka_sent() -> None:
    scram = ScramServer("SCRAM-SHA-256", nonce=SERVER_NONCE)
    assert scram.read_first(CLIENT_FIRST) == "alice"
    assert scram.first(ScramCredential.parse(KEPT)) == SERVER_FIRST
    assert scram.final(CLIENT_FINAL) == SERVER_FINAL


def test_a_password_becomes_the_credential_that_kafka_keeps() -> None:
    made = ScramCredential.of_password("SCRAM-SHA-256", "alice-secret", salt=SALT, iterations=8192)
    assert made.text() == KEPT
    assert ScramCredential.parse(KEPT) == made
    assert "rRNY" not in repr(made)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["alice", "a=b,c", "=2C"])
def test_both_sides_agree(mechanism: str, user: str) -> None:
    ours, theirs = ScramClient(mechanism, user, "p\u00e4ss", token=True), ScramServer(mechanism)
    assert (theirs.read_first(ours.first()), theirs.token) == (user, True)
    kept = ScramCredential.of_password(mechanism, "p\u00e4ss", salt=b"salt", iterations=4096)
    ours.verify(theirs.final(ours.final(theirs.first(kept))))


def test_a_wrong_password_is_refused_by_the_server() -> None:
    scram = ScramServer("SCRAM-SHA-256", nonce=SERVER_NONCE)
    scram.read_first(CLIENT_FIRST)
    scram.first(ScramCredential.parse(KEPT))
    with pytest.raises(ScramError, match="wrong proof"):
        scram.final(client(password="guess").final(SERVER_FIRST))


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        (SERVER_FIRST.replace(b"r=m", b"r=x"), "nonce"),
        (f"r={NONCE},s=c2FsdA==,i=4096".encode(), "nonce"),
        (SERVER_FIRST.replace(b"8192", b"4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"8192", b"1000001"), "1000001 iterations"),
        (b"e=unknown-user", "unknown-user"),
        (SERVER_FIRST[:20], "cannot be read"),
        (b"\xff", "UTF-8"),
    ],
)
def test_the_client_gives_no_proof_to_such_a_server(server_first: bytes, reason: str) -> None:
    with pytest.raises(ScramError, match=reason):
        client().final(server_first)


@pytest.mark.parametrize(
    "server_final", [b"v=AAAA", SERVER_FINAL.replace(b"4b", b"4c"), b"e=other-error", b"", b"v="]
)
def test_a_server_that_does_not_know_the_password_is_not_believed_and_none_before_the_proof(
    server_final: bytes,
) -> None:
    scram = client()
    with pytest.raises(ScramError):
        scram.verify(SERVER_FINAL)
    scram.final(SERVER_FIRST)
    with pytest.raises(ScramError):
        scram.verify(server_final)


@pytest.mark.parametrize(
    "client_final",
    [
        CLIENT_FINAL.replace(
            b"biws", b"eSws"
        ),  # y,,: the client believes that the server cannot bind channels
        CLIENT_FINAL.replace(b",r=m", b",r=x"),
        CLIENT_FINAL[:-5],
        CLIENT_FINAL.replace(b"p=Ew", b"p=Fw"),
        b"",
    ],
)
def test_the_server_refuses_a_changed_last_message(client_final: bytes) -> None:
    scram = ScramServer("SCRAM-SHA-256", nonce=SERVER_NONCE)
    scram.read_first(CLIENT_FIRST)
    scram.first(ScramCredential.parse(KEPT))
    with pytest.raises(ScramError):
        scram.final(client_final)
