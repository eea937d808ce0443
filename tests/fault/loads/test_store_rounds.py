"""A short round whose ledger is in an object store behind bad weather; longer ones, with the table there too,
are in tests/peers/test_store_rounds.py.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.ledger.s3_server import KEYS, Gate, s3_server
from tests.support.loads.growing_topic import growing
from tests.support.loads.spark_drivers import Drivers
from tests.support.loads.store_rounds import BucketRound
from tests.support.spark.spark_environments import s3a_keys

STEPS = ["worker killed at its receipt", "store away"]


@pytest.mark.long("Spark drivers that are killed")
def test_every_offset_is_loaded_once_with_a_ledger_in_an_object_store(
    local: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random("a ledger in a store")
    with (
        s3_server() as port,
        start_broker() as broker,
        growing(broker.bootstrap_servers, "in-a-store", 2, rng) as topic,
    ):
        gate = Gate(port)
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        try:
            done = BucketRound(
                "a ledger", local, broker, topic, tmp_path / "round",
                table_at=str(tmp_path / "table"), gate=gate, session=s3a_keys(gate.endpoint),
            )  # fmt: skip
            done.run(["plain", *rng.sample(STEPS, len(STEPS))])
            done.finish()
        finally:
            gate.close()
    assert done.struck["store away"] == 1
    assert done.weather.struck["away"] > 0
