"""Files that a property names, at their path or shipped with the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkFiles

import pyspark_kafkalog.datasource.batch.batch_reader  # noqa: F401  (what a task imports)
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.security.references import found_file, resolved


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a task's files, as Spark tells its Python workers."""
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    return tmp_path


def test_a_file_is_looked_up_at_its_path_and_then_among_those_shipped_by_its_base_name(
    shipped: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (shipped / "user.keytab").touch()
    there = tmp_path_factory.mktemp("there") / "user.keytab"
    for name in ("user.keytab", "/home/me/user.keytab", str(there)):
        assert found_file(name, "sasl.kerberos.keytab") == shipped / "user.keytab"
    there.touch()
    assert found_file(str(there), "sasl.kerberos.keytab") == there


def test_a_missing_file_is_named_with_both_places_and_its_option(shipped: Path) -> None:
    with pytest.raises(InvalidConfig) as e:
        found_file("/none/user.keytab", "kafka.sasl.kerberos.keytab")
    assert str(e.value) == (
        "kafka.sasl.kerberos.keytab: there is no file /none/user.keytab, nor was it shipped with the job: "
        f"{shipped}/user.keytab"
    )


def test_a_secret_that_an_option_refers_to_may_be_in_a_shipped_file(shipped: Path) -> None:
    (shipped / "kafka.properties").write_text("password=alice-secret\n")
    reference = "${file:/home/me/kafka.properties:password}"
    config = ClientConfig("broker:9092", sasl_password=reference, config_providers=("file",))
    assert resolved(config).sasl_password == "alice-secret"


def test_without_spark_only_the_path_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", False)
    monkeypatch.setattr(SparkFiles, "_sc", None)
    with pytest.raises(InvalidConfig, match=r"^x: there is no file /none/f$"):
        found_file("/none/f", "x")
