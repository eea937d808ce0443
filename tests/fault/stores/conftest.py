"""A server of S3 behind a gate, and the URL of an empty place in it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.ledger.s3_server import BUCKET, KEYS, Gate, s3_server


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def gate(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The server behind a gate, with the environment that names it."""
    gate = Gate(port)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": gate.endpoint}.items():
        monkeypatch.setenv(name, value)
    yield gate
    gate.close()


@pytest.fixture
def url(gate: Gate) -> str:
    return f"s3a://{BUCKET}/{uuid.uuid4()}/a b"
