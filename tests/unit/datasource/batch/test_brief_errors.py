from __future__ import annotations

import traceback

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_kafkalog.datasource.options.sink_options import parse_sink_options
from pyspark_kafkalog.datasource.sink.sink_writer import batch_writer
from pyspark_kafkalog.datasource.source import DefaultSource
from pyspark_kafkalog.errors import InvalidConfig, KafkaError

READ = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}


def _as_spark_shows(error: Exception) -> list[str]:
    """The lines of its traceback. Spark cuts away its own frames, which stand before ours."""
    trace = error.__traceback__
    assert trace is not None
    return traceback.format_exception(type(error), error, trace.tb_next)


def test_a_wrong_option_is_one_frame_and_its_text() -> None:
    with pytest.raises(InvalidConfig) as raised:
        DefaultSource(READ | {"startingtimestamp": "2026-01-01"}).schema()
    shown = _as_spark_shows(raised.value)
    frames = [line for line in shown if line.lstrip().startswith("File ")]
    assert len(frames) == 1
    assert "".join(shown).count("InvalidConfig") == 1
    assert shown[-1].startswith(
        "pyspark_kafkalog.errors.InvalidConfig: startingTimestamp: Expected a single long value, got "
        "2026-01-01; it is a time in milliseconds since the epoch, such as 1700000000000"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.sasl.mechanism": "PLAIN"}, "kafka.sasl.mechanism: kafka.security.protocol is missing"),
        ({"kafka.ssl.truststore.location": "/x"}, "to have these properties ignored, to PLAINTEXT"),
        ({"startingOfsets": "earliest"}, "Unknown option 'startingOfsets'. Did you mean 'startingOffsets'?"),
        ({"Kafka.Key.Deserializer": "x"}, "Kafka option 'Kafka.Key.Deserializer' is not supported"),
        ({"minPartitions": "some"}, "got 'some'; allowed: 1 to 9223372036854775807"),
        ({"kafka.api.version.request": "false"}, "names of Kafka's properties begin with 'kafka.'"),
        ({"protocol": "0.7", "zk.connect": "nowhere:x"}, "zk.connect=nowhere:x is not allowed"),
        (
            {"protocol": "0.7", "zk.connect": "a:1", "kafka.sasl.password": "x"},
            "kafka.sasl.password: Kafka 0.7 has",
        ),
        (
            {"protocol": "0.7", "zk.connect": "a:1", "kafka.security.protocol": "SASL_SSL"},
            "kafka.security.protocol: Kafka 0.7 has",
        ),
    ],
)
def test_errors_name_the_option_as_it_was_written(options: dict[str, str], said: str) -> None:
    from pyspark_kafkalog.datasource.options.read_options import parse_batch_options

    base = {"subscribe": "t"} if "protocol" in options else READ
    with pytest.raises(InvalidConfig) as raised:
        parse_batch_options(base | options)
    assert said in str(raised.value)


def test_a_sink_refuses_credentials_without_a_protocol_too() -> None:
    options = {"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.sasl.jaas.config": "geheim"}
    with pytest.raises(InvalidConfig, match=r"^kafka\.sasl\.jaas\.config: kafka\.security") as raised:
        parse_sink_options(options)
    assert "geheim" not in str(raised.value)
    parse_sink_options(options | {"kafka.security.protocol": "PLAINTEXT"})


def test_a_write_that_is_refused_is_two_frames_and_its_text() -> None:
    def refused(_: int) -> pa.RecordBatch:
        try:
            raise OSError("underneath")
        except OSError as e:
            raise KafkaError("this needs Write on topic t") from e

    options = parse_sink_options({"kafka.bootstrap.servers": "a:1", "topic": "t"})
    writer = batch_writer(options, StructType([StructField("value", BinaryType())]), overwrite=False)
    with pytest.raises(KafkaError) as raised:
        writer.write(map(refused, range(1)))
    shown = _as_spark_shows(raised.value)
    assert len([line for line in shown if line.lstrip().startswith("File ")]) == 2
    assert "underneath" not in "".join(shown)
