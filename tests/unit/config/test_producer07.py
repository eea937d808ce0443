from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.config.classic_config import (
    AsyncProducerConfig,
    BrokerAddress,
    ClassicProducerConfig,
    SyncProducerConfig,
    handler_props,
    parse_broker_list,
    producer_config,
)
from pyspark_kafkalog.config.properties import load_properties
from pyspark_kafkalog.errors import InvalidConfig
from pyspark_kafkalog.formats.compression import Codec

CONF = Path(__file__).resolve().parents[3] / "conf" / "producer.properties"


def classic(**properties: object) -> ClassicProducerConfig:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return producer_config(ClassicProducerConfig, {"zk.connect": "zk:2181", **named})


def test_the_file_is_the_defaults_with_a_zookeeper_on_this_machine() -> None:
    given = load_properties(CONF)
    assert given == {**ClassicProducerConfig(zookeeper_connect="localhost:2181").as_properties()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:a:9092", [(0, "a", 9092)]),
        (" 7:a:1 , 3:[::1]:2,", [(7, "a", 1), (3, "::1", 2)]),
        ("a:1,b:2", [(0, "a", 1), (1, "b", 2)]),
        ("[::1]:5", [(0, "::1", 5)]),
        ("10.0.0.1:5", [(0, "10.0.0.1", 5)]),
    ],
)
def test_a_broker_list_names_ids_hosts_and_ports(text: str, expected: list[tuple[int, str, int]]) -> None:
    assert parse_broker_list(text) == tuple(BrokerAddress(*broker) for broker in expected)


@pytest.mark.parametrize(
    "text", ["", ",", "a", "0:a", "a:1,1:b:2", "1:a:1,1:b:2", "x:a:1", "0:a:0", "-1:a:1"]
)
def test_anything_else_is_not_a_broker_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_broker_list(text)


@pytest.mark.parametrize(
    ("given", "codec"), [(0, Codec.NONE), ("1", Codec.GZIP), (2, Codec.SNAPPY), ("snappy", Codec.SNAPPY)]
)
def test_a_codec_is_a_name_or_a_number(given: object, codec: Codec) -> None:
    config = producer_config(AsyncProducerConfig, {"compression.codec": given, "compressed.topics": "a, b"})
    assert config.codec == codec
    assert [config.codec_of(topic) for topic in "abc"] == [codec, codec, Codec.NONE]


def test_today_s_wire_has_more_codecs_and_fewer_acks() -> None:
    assert (
        producer_config(AsyncProducerConfig, {"protocol": "0.8", "compression.codec": 4}).codec == Codec.ZSTD
    )
    with pytest.raises(
        InvalidConfig, match=r"compression.codec=zstd is not allowed; allowed with protocol=0.7"
    ):
        producer_config(AsyncProducerConfig, {"compression.codec": "zstd"})
    with pytest.raises(InvalidConfig, match=r"request.required.acks=0"):
        producer_config(SyncProducerConfig, {"protocol": "0.8", "request.required.acks": "0"})


def test_a_configuration_is_taken_as_it_is() -> None:
    config = classic()
    assert producer_config(AsyncProducerConfig, config) is config
    assert producer_config(SyncProducerConfig, None) == SyncProducerConfig()


def test_handlers_get_names_and_values() -> None:
    config = classic(callback_handler_props="a=1, b = x=y ,c=")
    assert handler_props(config.callback_handler_props) == {"a": "1", "b": "x=y", "c": ""}
