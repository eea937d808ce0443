"""The long rounds of files: loads of a topic that grows meanwhile, with every kind of fault; `load_soaks`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.loads.growing_topic import growing
from tests.support.loads.load_rounds import BY_HOUR, ORC_FILES, LoadRound
from tests.support.loads.load_soaks import FEWER_LOADS, KILLS, LOADS, SEEDS, soak, soaked_drivers

COMPACTIONS = ("compacted",) * 4


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("how", "loads", "first"),
    [
        ({}, LOADS, COMPACTIONS),
        (ORC_FILES, FEWER_LOADS, (*KILLS, *COMPACTIONS)),
        (BY_HOUR, FEWER_LOADS, (*KILLS, *COMPACTIONS)),
    ],
    ids=["parquet", "orc", "event time"],
)
def test_every_offset_is_loaded_once_in_many_loads(
    how: dict[str, str], loads: int, first: tuple[str, ...], seed: str, tmp_path: Path
) -> None:
    rng = random.Random(f"soak {seed}")
    with (
        soaked_drivers(tmp_path / "drivers") as drivers,
        start_broker() as broker,
        growing(broker.bootstrap_servers, f"soak-{seed}", 3, rng) as topic,
    ):
        soak(LoadRound(seed, drivers, broker, topic, tmp_path / "round", how=how), rng, loads, first)
