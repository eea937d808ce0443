"""Tokens from an OAuth endpoint: what it is asked, when again, and what its refusals become."""

from __future__ import annotations

import base64
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_kafkalog.client.login import tokens
from pyspark_kafkalog.client.login.mechanisms import login_of
from pyspark_kafkalog.client.login.tokens import EndpointSource, current
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.config.definition import parse
from pyspark_kafkalog.errors import AuthenticationFailed, EndpointUnreachable
from tests.support.client.token_endpoint import TokenEndpoint
from tests.support.manual_clock import ManualClock
from tests.support.network.certificates import Authority


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as made:
        yield made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock(time_ms=int(time.time() * 1000))
    monkeypatch.setattr(tokens, "SYSTEM_CLOCK", made)
    return made


def source(endpoint: TokenEndpoint, *, urlencode: bool = False, scope: str | None = "a b") -> EndpointSource:
    option = "sasl.oauthbearer.token.endpoint.url"
    return EndpointSource(endpoint.url, "me", "geheim:&", scope, urlencode, option)


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_the_endpoint_is_asked_as_kafka_asks_it(endpoint: TokenEndpoint) -> None:
    current(source(endpoint), 5)
    current(source(endpoint, urlencode=True, scope=None), 5)
    assert endpoint.asked == [
        (basic("me:geheim:&"), "grant_type=client_credentials&scope=a+b"),
        (basic("me:geheim%3A%26"), "grant_type=client_credentials"),
    ]


def test_a_process_has_one_token_until_four_fifths_of_its_life(
    endpoint: TokenEndpoint, clock: ManualClock
) -> None:
    first = current(source(endpoint), 5)
    clock.advance(0.79 * 3600)
    assert current(source(endpoint), 5) == first
    clock.advance(0.02 * 3600)
    assert current(source(endpoint), 5) != first
    assert len(endpoint.asked) == 2


def test_a_token_that_cannot_be_renewed_is_used_to_its_end(
    endpoint: TokenEndpoint, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    first = current(source(endpoint), 5)
    endpoint.answers.extend([(503, {})] * 2)
    clock.advance(0.9 * 3600)
    assert current(source(endpoint), 5) == first
    assert "cannot be renewed" in caplog.text
    clock.advance(0.2 * 3600)
    with pytest.raises(EndpointUnreachable, match=r"\(sasl.*\): it answered 503"):
        current(source(endpoint), 5)


def test_an_opaque_token_lasts_as_long_as_the_answer_says(
    endpoint: TokenEndpoint, clock: ManualClock
) -> None:
    endpoint.answers.extend((200, {"access_token": text, "expires_in": 100}) for text in "ab")
    found = [current(source(endpoint), 5)]
    clock.advance(79)
    found.append(current(source(endpoint), 5))
    clock.advance(2)
    found.append(current(source(endpoint), 5))
    assert found == ["a", "a", "b"]


def test_a_token_without_an_end_is_asked_for_each_time(endpoint: TokenEndpoint) -> None:
    endpoint.answers.extend((200, {"access_token": text}) for text in "ab")
    assert [current(source(endpoint), 5) for _ in "ab"] == ["a", "b"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            (401, {"error": "invalid_client", "error_description": "geheim:& is no secret"}),
            r"refused the client with 401 \(invalid_client: \*\*\* is no secret\); check sasl\.oauthbearer",
        ),
        ((400, b"<html>"), "refused the client with 400; check"),
        # A redirect would take the secret elsewhere.
        ((302, b""), "refused the client with 302"),
        ((200, {"token": "x"}), "sent no access_token"),
        ((200, b"[]"), "sent no access_token"),
        ((200, b"\xff"), "sent no access_token"),
    ],
)
def test_what_the_endpoint_refuses_is_final(
    endpoint: TokenEndpoint, answer: tuple[int, object], words: str
) -> None:
    endpoint.answers.append(answer)
    with pytest.raises(AuthenticationFailed, match=words) as e:
        current(source(endpoint), 5)
    assert "geheim" not in str(e.value)
    assert (e.value.retriable, len(endpoint.asked)) == (False, 1)


def test_only_a_repeated_secret_is_masked_in_what_the_endpoint_says(endpoint: TokenEndpoint) -> None:
    said = {"error": "invalid_client", "error_description": "secret:wrong is no secret of this client"}
    endpoint.answers.extend([(401, said)] * 2)
    for secret, shown in (("s", "secret:wrong is no secret"), ("wrong", "secret:*** is no secret")):
        with pytest.raises(AuthenticationFailed, match=re.escape(f"(invalid_client: {shown} of this")):
            current(replace(source(endpoint), client_secret=secret), 5)


def test_an_answer_that_is_no_http_may_be_right_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(10_000)
                accepted.sendall(b"hello\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(EndpointUnreachable, match=r"the token endpoint .*: hello"):
            current(EndpointSource(url, "me", "geheim", None, False, "option"), 5)
        thread.join()


def test_an_endpoint_that_is_away_may_be_asked_again() -> None:
    with TokenEndpoint() as gone:
        pass
    with pytest.raises(EndpointUnreachable, match=r"token endpoint 127.*:\d+ \(sasl\.oauthbearer.*refused"):
        current(source(gone), 5)


def test_an_https_endpoint_is_trusted_by_the_stores_of_the_jaas_entry(tmp_path) -> None:
    authority = Authority.made(tmp_path)
    authority.issue("server", "localhost")

    def login(url: str, options: str) -> bytes:
        given = {
            "bootstrap.servers": "a:1",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": url,
            # Azure's documentation has ssl.protocol there, with a value of old.
            "sasl.jaas.config": f'M required clientId=me clientSecret="geheim" ssl.protocol="SSL" {options};',
        }
        return next(login_of(parse(ClientConfig, given, source="test")).start("b", 5))

    with TokenEndpoint(key=tmp_path / "server.pem") as endpoint:
        with pytest.raises(AuthenticationFailed, match="CERTIFICATE_VERIFY_FAILED"):
            login(endpoint.url, "")
        assert b"Bearer ey" in login(endpoint.url, f'ssl.truststore.location="{authority.file}"')
    assert len(endpoint.asked) == 1
