"""Settings of object stores from Spark's keys, without Spark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_kafkalog.errors import InvalidConfig, LoadError, UnsafeStore
from pyspark_kafkalog.ledger.stores import object_clients
from pyspark_kafkalog.loads.output_files import give_spark_keys, use_spark_keys


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    given: dict[str, Any] = {}
    monkeypatch.setattr(object_clients, "_given", given)
    return given


class Conf:
    """What a JVM's Hadoop configuration says, and where each value is from."""

    def __init__(self, found: dict[str, str], defaults: dict[str, str]) -> None:
        self._found, self._defaults = found, defaults

    def getPropertySources(self, key: str) -> list[str] | None:
        if key in self._found:
            return ["core-site.xml"]
        return ["core-default.xml"] if key in self._defaults else None

    def get(self, key: str) -> str | None:
        return {**self._defaults, **self._found}.get(key)


def session(given: dict[str, str], site: dict[str, str] | None = None, *, classic: bool = False) -> Any:
    """A session that cannot hand anything on, as one of Spark Connect; with ``classic`` it has a JVM."""
    conf = SimpleNamespace(get=lambda name, default: given.get(name, default))
    defaults = {"fs.s3a.endpoint": "s3.default", "fs.s3a.aws.credentials.provider": "com.acme.Vault"}
    hadoop = Conf(site or {}, defaults)
    context = SimpleNamespace(hadoopConfiguration=lambda: hadoop)
    return SimpleNamespace(conf=conf, **({"_jsc": context} if classic else {}))


OURS = {"access_key_id": "AKIA", "secret_access_key": "hush"}


@pytest.mark.parametrize("prefix", ["spark.hadoop.", ""])
def test_keys_of_the_session_become_the_settings_of_the_bucket(given: dict[str, Any], prefix: str) -> None:
    give_spark_keys(
        session({f"{prefix}fs.s3a.access.key": "AKIA", f"{prefix}fs.s3a.secret.key": "hush"}), "s3://b/l"
    )
    assert given == {"s3:b": OURS}


def test_keys_of_hadoop_count_as_spark_reads_them_but_not_its_defaults(given: dict[str, Any]) -> None:
    site = {"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": "old", "fs.s3a.endpoint.region": "site"}
    spark = {"fs.s3a.secret.key": "hush", "spark.hadoop.fs.s3a.endpoint.region": "at the start"}
    give_spark_keys(session(spark, site, classic=True), "s3://b/l")
    assert given == {"s3:b": {**OURS, "region": "site"}}


def test_without_keys_and_at_paths_the_environment_is_left_to_decide(given: dict[str, Any]) -> None:
    give_spark_keys(session({}, classic=True), "s3://b/ledgers")
    give_spark_keys(session({"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": "hush"}), "/lake/_offsets")
    assert given == {}


def test_keys_that_the_session_no_longer_has_are_not_used(given: dict[str, Any]) -> None:
    give_spark_keys(session({"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": "hush"}), "s3://b/ledgers")
    give_spark_keys(session({}), "s3://b/ledgers")
    assert given == {}


def test_rotated_credentials_take_the_place_of_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(object_clients, "_open", lambda address, settings, location: opened.append(settings))
    monkeypatch.setattr(object_clients, "_clients", {})
    address = object_clients.address_of("s3a://b/x")
    for token in ("one", "one", "two"):
        object_clients.give_settings(address, {"session_token": token})
        object_clients.client(address, "s3a://b/x")
    assert [settings["session_token"] for settings in opened] == ["one", "two"]
    assert len(object_clients._clients) == 1


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://minio", "http://", "http://user:hush@minio"])
def test_an_endpoint_without_a_scheme_or_with_a_user_is_refused(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(LoadError, match=r"AWS_ENDPOINT_URL is .*; it must be http:// or https://") as e:
        object_clients.client(object_clients.address_of("s3a://b/x"), "s3a://b/x")
    assert "hush" not in str(e.value)


def test_processes_of_spark_connect_are_out_of_reach_in_words() -> None:
    with pytest.raises(InvalidConfig, match="environment of the server and its executors"):
        use_spark_keys(session({}), "s3://b/ledgers")
    with pytest.raises(UnsafeStore, match="at s3://, gs:// or abfss:// only"):
        use_spark_keys(session({}), "/lake")


def test_a_worker_finds_them_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"s3:b": {"region": "here", "secret_access_key": "hush"}}
    monkeypatch.setenv(object_clients.SETTINGS_VARIABLE, json.dumps(given))
    opened: list[Any] = []
    monkeypatch.setattr(object_clients, "_open", lambda address, settings, location: opened.append(settings))
    monkeypatch.setattr(object_clients, "_clients", {})
    monkeypatch.setattr(object_clients, "_opened_in", 0)
    object_clients.client(object_clients.address_of("s3a://b/x"), "s3a://b/x")
    assert opened == [given["s3:b"]]
