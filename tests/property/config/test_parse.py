from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kafkalog_broker.config.broker_config import BrokerConfig, LogConfig
from kafkalog_broker.config.endpoint import parse_endpoint
from pyspark_kafkalog.config.client_config import ConsumerConfig
from pyspark_kafkalog.config.definition import INT_MAX, LONG_MAX, Config, describe, parse
from pyspark_kafkalog.config.producer_config import ProducerConfig
from pyspark_kafkalog.errors import InvalidConfig

CONFIGS: list[type[Config]] = [BrokerConfig, LogConfig, ProducerConfig, ConsumerConfig]
NUMBERS = st.sampled_from([-2, -1, 0, 1, 2, INT_MAX, INT_MAX + 1, LONG_MAX, LONG_MAX + 1]) | st.integers()
VALUES: st.SearchStrategy[object] = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["true", "False", "all", "zstd", "compact,delete", "a:1", "PLAINTEXT://:0", "-1", "1e3"]),
    NUMBERS.map(str),
    NUMBERS,
    st.booleans(),
    st.none(),
    st.floats(),
    st.lists(st.text(max_size=5), max_size=3),
    st.binary(max_size=5),
)


def names(cls: type[Config]) -> list[str]:
    return [name for item in describe(cls) for name in (item.name, *item.aliases)]


@st.composite
def given_properties(draw: st.DrawFn) -> tuple[type[Config], dict[str, object]]:
    cls = draw(st.sampled_from(CONFIGS))
    name = st.sampled_from(names(cls)) | st.text(max_size=20)
    return cls, draw(st.dictionaries(name, VALUES, max_size=6))


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Any:
    logger = logging.getLogger("pyspark_kafkalog.config.definition")
    logger.disabled = True
    yield
    logger.disabled = False


@given(given_properties())
def test_parse_never_raises_anything_but_our_error(case: tuple[type[Config], dict[str, object]]) -> None:
    cls, properties = case
    config, refusal = None, ""
    try:
        config = parse(cls, properties, source="test")
    except InvalidConfig as e:
        refusal = str(e)
    assert "\n" not in refusal
    assert len(refusal) < 600
    if config is not None:
        for item in describe(cls):
            value = getattr(config, item.field)
            assert value is None or type(value) is item.kind


@given(given_properties())
def test_a_configuration_written_as_properties_is_read_back(
    case: tuple[type[Config], dict[str, object]],
) -> None:
    cls, properties = case
    try:
        config = parse(cls, {"bootstrap.servers": "a:1", **properties}, source="test")
    except InvalidConfig:
        assume(False)
    assert parse(cls, config.as_properties(), source="test") == config


@given(
    st.dictionaries(st.sampled_from(names(LogConfig)) | st.text(max_size=20), NUMBERS.map(str) | st.text())
)
def test_a_topics_overrides_are_taken_or_refused_whole(overrides: dict[str, str]) -> None:
    before = LogConfig()
    topic = before
    with suppress(InvalidConfig):
        topic = before.overridden(overrides)
    untouched = {item.field for item in describe(LogConfig) if item.name not in overrides}
    assert all(getattr(topic, field) == getattr(before, field) for field in untouched)
    assert before == LogConfig()


@given(st.text(max_size=40) | st.from_regex(r"PLAINTEXT://[^\n]{0,20}:[0-9]{1,6}"))
def test_an_endpoint_is_read_back_or_refused(text: str) -> None:
    try:
        endpoint = parse_endpoint(text)
    except ValueError:
        return
    assert parse_endpoint(str(endpoint)) == endpoint
    assert 0 <= endpoint.port <= 65535
