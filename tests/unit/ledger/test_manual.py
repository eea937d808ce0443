"""The examples of records in docs/ledger.md are records."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.plan import Plan
from pyspark_kafkalog.ledger.receipts import Receipt
from pyspark_kafkalog.ledger.records import decode, encode, seal, unseal

MANUAL = Path(__file__).parents[3] / "docs" / "ledger.md"


def examples() -> dict[str, bytes]:
    found = re.findall(r"```json\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    return {record["record"]: text.encode() for text in found if "record" in (record := json.loads(text))}


def test_the_manual_shows_each_record_as_the_code_writes_it() -> None:
    shown = examples()
    assert encode(decode(Plan, shown["plan"], "")) == shown["plan"]
    assert encode(decode(Receipt, shown["receipt"], "")) == shown["receipt"]
    assert encode(decode(Commit, shown["commit"], "")) == shown["commit"]
    load = unseal("load", shown["load"], "")
    fields = {name: value for name, value in load.items() if name not in ("record", "version", "sha256")}
    assert seal("load", fields) == shown["load"]


def test_the_manual_has_a_line_for_each_field() -> None:
    text = MANUAL.read_text()
    for kind, data in examples().items():
        for name in json.loads(data).keys() - {"record", "version", "sha256"}:
            assert f"`{name}`" in text, f"{name} of a {kind} is not described"
