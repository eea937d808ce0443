"""When dead letters may be kept."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_kafkalog.errors import LoadError
from pyspark_kafkalog.ledger.commit import LoadOutput
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.loads.dead_letters import DeadLetters
from pyspark_kafkalog.loads.file_table import Work
from tests.support.ledger.memory_store import MemoryStore
from tests.support.ledger.plans import begun


@pytest.mark.parametrize("format", ["sql", "delta", "iceberg"])
def test_dead_letters_come_before_what_nobody_takes_back(format: str) -> None:
    ledger = Ledger(MemoryStore(), "flights")
    ledger.identify("cluster-a", {"subscribe": "clicks"})
    nothing = cast(Any, None)
    work = Work(
        spark=nothing, engine=nothing, ledger=ledger, plan=begun(ledger), run="run", frame=nothing,
        is_whole=False, has_receipts=True, before=(LoadOutput("there", format=format),), source=nothing,
    )  # fmt: skip
    with pytest.raises(LoadError, match="call dead_letters before write_sql, write_delta and write_iceb"):
        DeadLetters(ledger, "reason", None).check(work)
