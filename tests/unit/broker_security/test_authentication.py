"""Logins step by step: Kafka's order of requests, what is out of order, mechanisms, lifetimes, renewals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog_broker.security.authentication import (
    Accepted,
    Challenge,
    Login,
    LoginRefused,
    LoginStep,
    Plain,
    Principal,
    Scram,
    Verdict,
    plain_passwords,
)
from kafkalog_broker.security.file_stores import Credentials
from pyspark_kafkalog.errors import ErrorCode, InvalidConfig
from pyspark_kafkalog.protocol.api.logins import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pyspark_kafkalog.protocol.api.metadata import ApiVersionsRequest, MetadataRequest
from pyspark_kafkalog.protocol.exchange import api_of, decode_response, encode_request
from pyspark_kafkalog.security.scram import ScramClient, ScramCredential

ALICE = Principal("User", "alice")
GOOD = b"\0alice\0alice-secret"
CREDENTIAL = ScramCredential.of_password("SCRAM-SHA-256", "alice-secret", salt=b"salt" * 4, iterations=4096)


class Users:
    """Credentials that nobody changes."""

    def __init__(self, users: Credentials, secret: bytes = b"secret") -> None:
        self._users = users
        self._secret = secret

    def all(self) -> Credentials:
        return self._users

    def secret(self) -> bytes:
        return self._secret

    def change(self, changes: Any) -> None:
        raise AssertionError(changes)


class Connection:
    """Requests to one login, at times that the test says."""

    def __init__(self, max_lifetime_ms: int = 0) -> None:
        self.login = Login(
            {
                "PLAIN": Plain({"alice": "alice-secret", "admin": "x"}, max_lifetime_ms),
                "SCRAM-SHA-256": Scram(
                    "SCRAM-SHA-256", Users({"alice": {"SCRAM-SHA-256": CREDENTIAL}}), max_lifetime_ms
                ),
            }
        )
        self.now = 100.0

    def step(self, request: Any, version: int) -> LoginStep:
        frame = b"".join(encode_request(request, version=version, correlation_id=7, client_id="c"))[4:]
        return self.login.take(bytearray(frame), self.now, int(self.now * 1000))

    def ask(self, request: Any, version: int) -> Any:
        """The answer, which must not end the connection."""
        step = self.step(request, version)
        assert step.verdict is Verdict.ANSWER, step
        return self.decoded(step, request, version)

    def refused(self, request: Any, version: int) -> Any:
        """The last answer; None for a mere end."""
        step = self.step(request, version)
        assert step.verdict is Verdict.REFUSE, step
        return None if step.parts is None else self.decoded(step, request, version)

    @staticmethod
    def decoded(step: LoginStep, request: Any, version: int) -> Any:
        assert step.parts is not None
        frame = b"".join(step.parts)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        correlation_id, answer = decode_response(api_of(type(request)).key, version, frame[4:])
        assert correlation_id == 7
        return answer

    def handshake(self, mechanism: str = "PLAIN") -> None:
        answer: SaslHandshakeResponse = self.ask(SaslHandshakeRequest(mechanism), 1)
        assert answer == SaslHandshakeResponse(ErrorCode.NONE, ("PLAIN", "SCRAM-SHA-256"))

    def token(self, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        answer: SaslAuthenticateResponse = self.ask(SaslAuthenticateRequest(token), version)
        assert answer.error_code is ErrorCode.NONE
        return answer

    def refused_token(self, token: bytes) -> str | None:
        answer: SaslAuthenticateResponse = self.refused(SaslAuthenticateRequest(token), 2)
        assert answer.error_code is ErrorCode.SASL_AUTHENTICATION_FAILED
        return answer.error_message

    def logged_in(self) -> Connection:
        self.handshake()
        self.token(GOOD)
        return self


VERSIONS = ApiVersionsRequest(client_software_name="c", client_software_version="1")


def test_api_versions_handshake_authenticate_then_requests() -> None:
    connection = Connection()
    assert connection.step(VERSIONS, 3).verdict is Verdict.SERVE
    connection.handshake()
    assert connection.token(GOOD, version=1) == SaslAuthenticateResponse(ErrorCode.NONE, None, b"", 0)
    assert connection.login.principal == ALICE
    assert connection.step(MetadataRequest(topics=()), 9).verdict is Verdict.SERVE
    # Java asks for the versions again.
    assert connection.step(VERSIONS, 4).verdict is Verdict.SERVE


def test_bare_tokens_follow_a_handshake_of_version_0() -> None:
    connection = Connection()
    connection.ask(SaslHandshakeRequest("SCRAM-SHA-256"), 0)
    client = ScramClient("SCRAM-SHA-256", "alice", "alice-secret")

    def bare(token: bytes) -> bytes:
        step = connection.login.take(bytearray(token), connection.now, 0)
        assert step.verdict is Verdict.ANSWER
        answer = b"".join(step.parts or ())
        assert int.from_bytes(answer[:4], "big") == len(answer) - 4
        return answer[4:]

    client.verify(bare(client.final(bare(client.first()))))
    assert connection.login.principal == ALICE
    assert connection.step(MetadataRequest(topics=()), 9).verdict is Verdict.SERVE


def test_a_wrong_bare_token_gets_no_reason() -> None:
    connection = Connection()
    connection.ask(SaslHandshakeRequest("PLAIN"), 0)
    step = connection.login.take(bytearray(b"\0alice\0wrong"), 0, 0)
    assert (step.verdict, step.parts) == (Verdict.REFUSE, None)


@pytest.mark.parametrize(
    ("before", "request_", "version"),
    [
        ([], MetadataRequest(topics=()), 9),
        ([], SaslAuthenticateRequest(GOOD), 2),
        ([(VERSIONS, 3)], VERSIONS, 3),
        ([(VERSIONS, 3)], MetadataRequest(topics=()), 9),
        ([(VERSIONS, 3)], SaslAuthenticateRequest(GOOD), 2),
        ([(SaslHandshakeRequest("PLAIN"), 1)], MetadataRequest(topics=()), 9),
        ([(SaslHandshakeRequest("PLAIN"), 1)], VERSIONS, 3),
    ],
)
def test_what_is_out_of_order_ends_the_connection(
    before: list[tuple[Any, int]], request_: Any, version: int
) -> None:
    connection = Connection()
    for each in before:
        assert connection.step(*each).verdict is not Verdict.REFUSE
    assert connection.refused(request_, version) is None
    # Nothing helps afterwards.
    assert connection.refused(SaslHandshakeRequest("PLAIN"), 1) is None


def test_a_second_handshake_is_refused_at_the_end() -> None:
    connection = Connection()
    connection.handshake()
    answer = connection.refused(SaslHandshakeRequest("PLAIN"), 1)
    assert answer.error_code is ErrorCode.ILLEGAL_SASL_STATE


def test_api_versions_of_an_unknown_version_may_be_followed_by_a_known_one() -> None:
    connection = Connection()
    unknown = bytearray(b"\x00\x12\x00\x63\x00\x00\x00\x01\xff\xff\x00")
    assert connection.login.take(unknown, 0, 0).verdict is Verdict.SERVE
    assert connection.step(VERSIONS, 3).verdict is Verdict.SERVE
    connection.handshake()


def test_an_unknown_mechanism_gets_the_list() -> None:
    answer = Connection().refused(SaslHandshakeRequest("GSSAPI"), 1)
    assert answer == SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, ("PLAIN", "SCRAM-SHA-256"))


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0alice-secret", "Authentication failed: Invalid username or password"),
        (b"alice\0alice-secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0a\0b\0c", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0\xff\0x", "Invalid SASL/PLAIN response: it is not UTF-8"),
        (
            b"admin\0alice\0alice-secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
    ],
)
def test_plain_is_refused_in_kafkas_words(token: bytes, words: str) -> None:
    connection = Connection()
    connection.handshake()
    assert connection.refused_token(token) == words
    assert connection.login.principal is None


def test_the_own_name_as_authorization_id_is_allowed() -> None:
    connection = Connection()  # kafka-python and aiokafka send it
    connection.handshake()
    connection.token(b"alice\0alice\0alice-secret")
    assert connection.login.principal == ALICE


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "alice-secret")])
def test_scram_does_not_tell_whether_a_user_exists(user: str, password: str) -> None:
    connection = Connection()
    connection.handshake("SCRAM-SHA-256")
    client = ScramClient("SCRAM-SHA-256", user, password)
    challenge = connection.token(client.first()).auth_bytes
    assert b",i=4096" in challenge
    assert connection.refused_token(client.final(challenge)) == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism"
        " SCRAM-SHA-256"
    )


def kept(salt: bytes, iterations: int) -> ScramCredential:
    return ScramCredential(salt, b"stored", b"server", iterations)


SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
OF_LIBRDKAFKA = {SHA_256: kept(b"\x01" * 64, 8192), SHA_512: kept(b"\x02" * 64, 8192)}
OF_JAVA = {SHA_512: kept(b"m4a17g2a0see0gsi5tqbntz8v", 4096)}
OURS = {SHA_256: kept(b"\x03" * 24, 4096), SHA_512: kept(b"\x04" * 24, 16_384)}
KNOWN = {"a": OF_LIBRDKAFKA, "b": OF_JAVA, "c": OURS}
NAMES = [f"nobody-{number}" for number in range(300)]


def shown(users: Mapping[str, Mapping[str, ScramCredential]], **given: Any) -> dict[str, tuple[Any, ...]]:
    """The salts and iterations that clients see of unknown names: with SHA-256, and with SHA-512."""
    mechanisms = [Scram(name, Users(users, **given)) for name in (SHA_256, SHA_512)]
    found = [[mechanism.credential(name) for mechanism in mechanisms] for name in NAMES]
    return {
        name: tuple(each for one in pair for each in (one.salt, one.iterations))
        for name, pair in zip(NAMES, found, strict=True)
    }


def test_an_unknown_user_looks_like_some_real_one() -> None:
    kinds = set()
    for salt_256, iterations_256, salt_512, iterations_512 in shown(KNOWN).values():
        assert salt_256 != salt_512
        sizes = [
            "Java's" if re.fullmatch(rb"[0-9a-z]{20,26}", salt) else len(salt)
            for salt in (salt_256, salt_512)
        ]
        kinds.add((sizes[0], iterations_256, sizes[1], iterations_512))
    assert kinds == {(64, 8192, 64, 8192), ("Java's", 4096, "Java's", 4096), (24, 4096, 24, 16_384)}
    # whoever lacks one of the mechanisms shows there what an unknown user like him would
    lacking = Scram(SHA_256, Users(KNOWN)).credential("b")
    assert re.fullmatch(rb"[0-9a-z]{20,26}", lacking.salt)
    assert lacking.iterations == 4096


def test_an_unknown_user_is_shown_the_same_everywhere_and_at_all_times() -> None:
    before = shown(KNOWN)
    assert len({salt for salt, *_ in before.values()}) == len(NAMES)
    assert shown(KNOWN | {"d": OF_JAVA, "e": OURS}) == before
    assert shown(KNOWN, secret=b"another") != before


def test_a_new_kind_of_user_changes_only_the_names_that_look_like_it() -> None:
    before, after = shown(KNOWN), shown(KNOWN | {"d": {SHA_256: kept(b"\x05" * 32, 4096)}})
    changed = {name for name in NAMES if after[name] != before[name]}
    assert changed == {name for name in NAMES if len(after[name][0]) == 32}
    assert 30 < len(changed) < 150


def test_without_users_an_unknown_one_looks_like_those_of_add_user() -> None:
    assert {(len(salt), iterations) for salt, iterations, *_ in shown({}).values()} == {(24, 4096)}


def test_delegation_tokens_are_refused() -> None:
    connection = Connection()
    connection.handshake("SCRAM-SHA-256")
    message = ScramClient("SCRAM-SHA-256", "alice", "alice-secret", token=True).first()
    assert "invalid credentials" in str(connection.refused_token(message))


def test_a_login_has_a_lifetime_and_is_renewed() -> None:
    connection = Connection(max_lifetime_ms=20_000)
    connection.handshake()
    assert connection.token(GOOD).session_lifetime_ms == 20_000
    connection.now += 19.9
    assert connection.step(MetadataRequest(topics=()), 9).verdict is Verdict.SERVE
    connection.handshake()
    connection.token(GOOD)
    connection.now += 19.9
    assert connection.step(MetadataRequest(topics=()), 9).verdict is Verdict.SERVE
    connection.now += 0.2
    assert connection.refused(MetadataRequest(topics=()), 9) is None


def test_a_login_that_is_over_can_still_be_renewed() -> None:
    connection = Connection(max_lifetime_ms=20_000).logged_in()
    connection.now += 30
    connection.handshake()
    connection.token(GOOD)
    assert connection.step(MetadataRequest(topics=()), 9).verdict is Verdict.SERVE


def test_a_renewal_cannot_change_user_or_mechanism() -> None:
    connection = Connection(max_lifetime_ms=20_000).logged_in()
    connection.now += 5
    connection.handshake()
    assert connection.refused_token(b"\0admin\0x") == (
        "Cannot change principals during re-authentication from User.alice: User.admin"
    )
    connection = Connection(max_lifetime_ms=20_000).logged_in()
    connection.now += 5
    assert connection.refused(SaslHandshakeRequest("SCRAM-SHA-256"), 1) is None


def test_while_a_login_is_renewed_nothing_else_may_be_asked() -> None:
    connection = Connection(max_lifetime_ms=20_000).logged_in()
    connection.now += 5
    connection.handshake()
    assert connection.refused(MetadataRequest(topics=()), 9) is None


@pytest.mark.parametrize(("lifetime_ms", "later"), [(20_000, 0.5), (0, 5.0)])
def test_a_renewal_too_soon_or_without_need_changes_nothing(lifetime_ms: int, later: float) -> None:
    connection = Connection(max_lifetime_ms=lifetime_ms).logged_in()
    connection.now += later
    answer = connection.ask(SaslHandshakeRequest("PLAIN"), 1)
    assert answer.error_code is ErrorCode.ILLEGAL_SASL_STATE
    assert connection.step(MetadataRequest(topics=()), 9).verdict is Verdict.SERVE


class Token:
    """A mechanism whose credential ends."""

    max_lifetime_ms, may_block = 20_000, True

    def __init__(self, rest_ms: int) -> None:
        self.rest_ms = rest_ms

    def begin(self) -> Token:
        return self

    def evaluate(self, token: bytes, now_ms: int) -> Challenge | Accepted:
        if token == b"more":
            return Challenge(b"?")
        if token != b"ok":
            raise LoginRefused("no")
        return Accepted(ALICE, b"!", self.rest_ms)


@pytest.mark.parametrize(("rest_ms", "lifetime_ms"), [(5_000, 5_000), (50_000, 20_000)])
def test_a_login_lasts_no_longer_than_its_credential(rest_ms: int, lifetime_ms: int) -> None:
    connection = Connection()
    connection.login = Login({"T": Token(rest_ms)})
    assert not connection.login.may_block
    connection.ask(SaslHandshakeRequest("T"), 1)
    assert connection.login.may_block
    assert connection.token(b"more") == SaslAuthenticateResponse(ErrorCode.NONE, None, b"?", 0)
    assert connection.token(b"ok") == SaslAuthenticateResponse(ErrorCode.NONE, None, b"!", lifetime_ms)


@given(st.lists(st.binary(max_size=80), max_size=4))
def test_garbage_never_raises_and_never_logs_in(frames: list[bytes]) -> None:
    for started in (False, True):
        connection = Connection()
        if started:
            connection.handshake("SCRAM-SHA-256")
        for frame in frames:
            connection.login.take(bytearray(frame), 0, 0)
        assert connection.login.principal is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "PLAIN needs its users"),
        ("x required;", "has no users"),
        ("x required user_a=hush-1 2;", "Value not specified"),
        ('x required user_a="hush-1"', "not terminated by semi-colon"),
    ],
)
def test_plain_without_users_is_refused_without_a_secret(text: str | None, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as error:
        plain_passwords(text, "listener.name.x.plain.sasl.jaas.config")
    assert "hush" not in str(error.value)


def test_plains_users_are_in_the_jaas_entry() -> None:
    text = 'P required username="me" password="mine" user_alice="a b" "user_x@y/z"=\'q\';'
    assert plain_passwords(text, "p") == {"alice": "a b", "x@y/z": "q"}
