"""Settings of object stores from Spark's keys, without Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.loads.store_keys import hand_over
from pyspark_kafkalog.stores import object_clients


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    given: dict[str, Any] = {}
    monkeypatch.setattr(object_clients, "_given", given)
    return given


def session(**keys: str) -> Any:
    found = {f"spark.hadoop.{name}": value for name, value in keys.items()}
    return SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: found.get(name, default)))


KEYS = {"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": "hush"}


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        ({}, {}),
        ({"fs.s3a.session.token": "t"}, {"session_token": "t"}),
        (
            {
                "fs.s3a.endpoint": "http://h:9000",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.endpoint.region": "r",
            },
            {"endpoint": "http://h:9000", "region": "r"},
        ),
        (
            {
                "fs.s3a.endpoint": "h:9000",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.connection.ssl.enabled": "false",
            },
            {"endpoint": "http://h:9000"},
        ),
        (
            {"fs.s3a.endpoint": "s3.aws"},
            {"endpoint": "https://b.s3.aws", "virtual_hosted_style_request": True},
        ),
        (
            {"fs.s3a.bucket.b.endpoint.region": "here", "fs.s3a.bucket.c.endpoint.region": "there"},
            {"region": "here"},
        ),
        ({"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"}, {}),
    ],
)
def test_keys_of_s3a_become_the_settings_of_the_bucket(
    given: dict[str, Any], keys: dict[str, str], settings: dict[str, Any]
) -> None:
    hand_over(session(**KEYS, **keys), "s3://b/ledgers")
    assert given == {"s3:b": {"access_key_id": "AKIA", "secret_access_key": "hush", **settings}}


def test_the_key_of_an_azure_account_is_that_of_its_host(given: dict[str, Any]) -> None:
    host = "a.dfs.core.windows.net"
    hand_over(session(**{f"fs.azure.account.key.{host}": "hush"}), f"abfss://c@{host}/ledgers")
    assert given == {f"azure:c@{host}": {"account_key": "hush"}}


def test_without_keys_and_at_paths_the_environment_is_left_to_decide(given: dict[str, Any]) -> None:
    provider = {
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider"
    }
    hand_over(session(**provider), "s3://b/ledgers")
    hand_over(session(**KEYS), "/lake/_offsets")
    assert given == {}


@pytest.mark.parametrize(
    "keys",
    [
        {"fs.s3a.aws.credentials.provider": "com.acme.VaultProvider", **KEYS},
        {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"},
        {"hadoop.security.credential.provider.path": "jceks://hdfs@nn/keys.jceks"},
    ],
)
def test_a_provider_that_only_java_has_is_refused(keys: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match=r"only Java can (use|read).*AWS_ACCESS_KEY_ID") as e:
        hand_over(session(**keys), "s3a://b/ledgers")
    assert "hush" not in str(e.value)


def test_a_worker_finds_them_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"s3:b": {"region": "here", "secret_access_key": "hush"}}
    monkeypatch.setenv(object_clients.SETTINGS_VARIABLE, json.dumps(given))
    opened: list[Any] = []
    monkeypatch.setattr(object_clients, "_open", lambda address, settings, location: opened.append(settings))
    monkeypatch.setattr(object_clients, "_clients", {})
    monkeypatch.setattr(object_clients, "_opened_in", 0)
    object_clients.client(object_clients.address_of("s3a://b/x"), "s3a://b/x")
    assert opened == [given["s3:b"]]
