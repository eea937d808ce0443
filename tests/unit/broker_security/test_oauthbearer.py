"""Tokens: who signed them, for whom, until when; and what a client is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kafkalog_broker.config.listener_config import ListenerConfig
from kafkalog_broker.security.authentication import Accepted, Challenge, LoginRefused, Principal
from kafkalog_broker.security.oauthbearer import OAuthBearer, SignedTokens, oauth_bearer, unsigned
from pyspark_kafkalog.errors import InvalidConfig
from tests.support.network.tokens import Signer, coordinate, encoded, number, unsigned_token

ALICE = Principal("User", "alice")
REFUSED = b'{"status":"invalid_token"}'


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


@pytest.fixture(scope="module")
def keys(signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> SignedTokens:
    url = signer.list_keys(tmp_path_factory.mktemp("keys") / "keys.json")
    found = SignedTokens(url, issuer="https://issuer", audience=("us", "them"))
    found.refresh()
    return found


OURS = {"iss": "https://issuer", "aud": "us"}


def message(token: str, acts_for: str = "", more: str = "") -> bytes:
    return f"n,{acts_for},\x01auth=Bearer {token}\x01{more}\x01".encode()


def evaluate(mechanism: OAuthBearer, first: bytes) -> Challenge | Accepted:
    return mechanism.begin().evaluate(first, int(time.time() * 1000))


@pytest.mark.parametrize("kid", ["rsa", "ec"])
def test_a_signed_token_says_who_and_for_how_long(keys: SignedTokens, signer: Signer, kid: str) -> None:
    first = message(signer.token(kid, 60, **OURS), "a=alice", "logicalCluster=x\x01")
    result = evaluate(OAuthBearer(keys), first)
    assert isinstance(result, Accepted)
    assert (result.principal, result.token) == (ALICE, b"")
    assert 0 < (result.lifetime_ms or 0) <= 60_000


def test_what_is_not_to_be_trusted_is_refused_in_two_steps(keys: SignedTokens, signer: Signer) -> None:
    good, other = signer.token(**OURS), Signer()
    head, body, signature = good.split(".")
    forged = f"{head}.{encoded({'sub': 'admin', 'exp': time.time() + 60, **OURS})}.{signature}"
    hs256 = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{body}.{signature}"
    none = f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{body}."
    refused = [
        other.token(**OURS), other.token("ec", **OURS), forged, hs256, none, unsigned_token(**OURS),
        signer.token(kid="rsa", alg="ES256", **OURS), signer.token(**{**OURS, "iss": "https://other"}),
        signer.token(**{**OURS, "aud": ["you"]}), signer.token(iss="https://issuer"),
        signer.token(seconds=-60, **OURS), signer.token(nbf=time.time() + 600, **OURS),
        signer.token(**{**OURS, "sub": ""}), signer.token(**{**OURS, "sub": 5}),
        signer.token(**{**OURS, "exp": "soon"}), signer.token(**{**OURS, "exp": float("inf")}),
        "a.b", "a.b.c", "....", encoded({}) * 3,
    ]  # fmt: skip
    mechanism = OAuthBearer(keys)
    for token in refused:
        exchange = mechanism.begin()
        assert exchange.evaluate(message(token), int(time.time() * 1000)) == Challenge(REFUSED), token
        with pytest.raises(LoginRefused, match=r'^\{"status":"invalid_token"\}$'):
            exchange.evaluate(b"\x01", int(time.time() * 1000))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({**OURS, "iss": "https://other"}, r"its issuer \(iss\) is not sasl\.oauthbearer\.expected\.issuer"),
        ({**OURS, "aud": ["you"]}, r"its audience \(aud\) is not one of sasl\.oauthbearer\.expected\."),
        ({"iss": "https://issuer"}, 'missing the "aud" claim'),
        ({**OURS, "alg": "ES256"}, "its algorithm does not fit its key"),
        ({**OURS, "kid": "none"}, "a key that the endpoint does not have"),
    ],
)
def test_the_log_says_why_a_token_is_refused(
    keys: SignedTokens, signer: Signer, claims: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        keys(signer.token(**claims))


@pytest.mark.parametrize("token", ["a.b", "....", f"{encoded({'alg': 'none'})}.{encoded(b'[' * 9000)}."])
def test_an_invalid_token_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="it is not a JWT"):
        unsigned(token)


@pytest.mark.parametrize("written", [number, coordinate])
def test_a_coordinate_may_begin_with_zeros(written: Callable[[int], str], tmp_path: Path) -> None:
    signer = Signer()
    signer.ec = ec.derive_private_key(43, ec.SECP256R1())
    point = signer.ec.public_key().public_numbers()
    assert point.y < 1 << 248
    key = {"kty": "EC", "kid": "ec", "crv": "P-256", "x": written(point.x), "y": written(point.y)}
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [key]}))
    keys = SignedTokens(path.as_uri())
    keys.refresh()
    assert keys(signer.token("ec"))["sub"] == "alice"


def test_keys_of_other_kinds_are_left_out(
    signer: Signer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    signer.list_keys(path)
    listed = json.loads(path.read_text())["keys"]
    others = [{"kty": "RSA", "kid": "torn"}, {**listed[0], "kid": "enc", "alg": "RSA-OAEP-256"}]
    path.write_text(json.dumps({"keys": [{**listed[0], "d": "AQ"}, *others, *listed[2:]]}))
    keys = SignedTokens(path.as_uri())
    keys.refresh()
    assert [record.message.partition(" cannot")[0] for record in caplog.records] == [
        "the key 'torn' of the endpoint", "the key 'enc' of the endpoint",
    ]  # fmt: skip
    assert keys(signer.token())["sub"] == "alice"
    for kid in ("ec", "enc", "torn", "shared"):
        with pytest.raises(ValueError, match="a key that the endpoint does not have"):
            keys(signer.token(kid))
    path.write_text(json.dumps({"keys": listed[2:]}))
    with pytest.raises(InvalidConfig, match=r"has no key of RSA or P-256"):
        keys.refresh()


@pytest.mark.parametrize(
    "first", [b"", b"n,,", b"n,,\x01auth=Basic x\x01\x01", b"y,,\x01auth=Bearer x\x01\x01"]
)
def test_what_cannot_be_read_is_refused_at_once(first: bytes) -> None:
    with pytest.raises(LoginRefused, match="Invalid OAUTHBEARER client first message"):
        evaluate(OAuthBearer(unsigned), first)


def test_nobody_acts_for_others() -> None:
    with pytest.raises(LoginRefused, match=r"authorization id \(admin\) that is different"):
        evaluate(OAuthBearer(unsigned), message(unsigned_token(), "a=admin"))


def test_clocks_may_differ_a_little() -> None:
    late = message(unsigned_token(seconds=-5))
    assert evaluate(OAuthBearer(unsigned), late) == Challenge(REFUSED)
    assert evaluate(OAuthBearer(unsigned, skew_ms=30_000), late) == Accepted(ALICE, b"", 1)


def test_a_key_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    old, new = Signer(), Signer()
    keys = SignedTokens(old.list_keys(tmp_path / "keys.json"))
    keys.refresh()
    new.list_keys(tmp_path / "keys.json")
    keys.refresh()
    assert keys(new.token())["sub"] == "alice"
    with pytest.raises(ValueError, match="signature is wrong"):
        keys(old.token())
    (tmp_path / "keys.json").write_text("{}")
    with pytest.raises(InvalidConfig, match=r"keys of sasl\.oauthbearer\.jwks\.endpoint\.url="):
        keys.refresh()
    assert keys(new.token())["sub"] == "alice"


def claims_of(token: str) -> Mapping[str, Any]:
    if token == "bad":
        raise RuntimeError("never show bad")
    return {"user": token, "exp": time.time() + 60}


def test_a_python_function_may_verify(caplog: pytest.LogCaptureFixture) -> None:
    config = ListenerConfig(
        sasl_server_callback_handler_class=f"{__name__}:claims_of", sasl_oauthbearer_sub_claim_name="user"
    )
    mechanism, keys = oauth_bearer(config, "p.")
    assert (mechanism.may_block, keys) == (True, None)
    result = evaluate(mechanism, message("bob"))
    assert isinstance(result, Accepted)
    assert result.principal.name == "bob"
    with caplog.at_level("INFO"):
        assert evaluate(mechanism, message("bad")) == Challenge(REFUSED)
    assert "raised RuntimeError" in caplog.text
    assert "never show" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, r"OAUTHBEARER needs a way to verify tokens: p\.sasl\.oauthbearer\.jwks\.endpoint\.url"),
        ({"sasl_oauthbearer_jwks_endpoint_url": "ftp://x"}, "https:, http: or file:"),
        ({"sasl_oauthbearer_jwks_endpoint_url": "file:///none"}, "No such file"),
        ({"sasl_server_callback_handler_class": "com.example.Mine"}, "com.example.Mine is not known"),
        ({"sasl_server_callback_handler_class": "no.such:f"}, "No module named"),
    ],
)
def test_without_a_verifier_a_broker_does_not_start(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        oauth_bearer(ListenerConfig(**settings), "p.")
