"""``docs/journeys.py`` traces each journey through this tree."""

from __future__ import annotations

import pytest

from docs.generate import ROOT
from docs.house import JOURNEYS, journey

CROSSED = {
    "produce": ("broker/kafkalog_broker/server/handlers/produce.py", "pyspark_kafkalog/protocol/exchange.py"),
    "fetch": ("broker/kafkalog_broker/server/handlers/fetch.py", "pyspark_kafkalog/protocol/exchange.py"),
    "task": ("pyspark_kafkalog/client/transport.py", "pyspark_kafkalog/columnar/python_engine.py"),
    "load": ("pyspark_kafkalog/client/transport.py", "pyspark_kafkalog/ledger/receipts.py"),
    "send": ("pyspark_kafkalog/client/transport.py", "pyspark_kafkalog/producer/producer.py"),
}


@pytest.mark.long("traces whole requests")
@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_crosses_what_it_must(name: str) -> None:
    crossed = journey(name, ROOT)
    assert set(CROSSED[name]) <= set(crossed)
    assert not any(file.startswith("broker/") for file in crossed) or name in ("produce", "fetch")
    assert all((ROOT / file).is_file() for file in crossed)
