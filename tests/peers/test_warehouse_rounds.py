"""The fault driver of loads into Delta Lake and Iceberg: every offset is in the table once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.foreign.fetched import NotAvailable
from tests.support.loads.growing_topic import growing
from tests.support.loads.lake_rounds import LakeRound
from tests.support.loads.load_soaks import FEWER_LOADS, KILLS, SEEDS, soak, soaked_drivers
from tests.support.loads.spark_drivers import LOCAL, Drivers
from tests.support.spark.spark_environments import older_pyspark, warehouse_configs, warehouse_jars

STEPS = {"delta": "driver killed before its commit", "iceberg": "worker killed"}
"""Of a short round for each kind; the long ones have them all."""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What drivers need for both."""
    try:
        jars = ",".join(map(str, warehouse_jars()))
        configs = {"spark.jars": jars, **warehouse_configs(tmp_path_factory.mktemp("warehouses"))}
        return {"pyspark": older_pyspark(), "configs": configs}
    except NotAvailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def local(installation: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path_factory.mktemp("local"), [LOCAL, LOCAL], replace_at_once=True, **installation)
    drivers.all()
    yield drivers
    drivers.stop()


@pytest.mark.parametrize("kind", STEPS)
def test_every_offset_is_in_the_table_once_whatever_is_killed(
    kind: str, local: Drivers, tmp_path: Path
) -> None:
    rng = random.Random(f"a round of {kind}")
    with start_broker() as broker, growing(broker.bootstrap_servers, f"in-{kind}", 2, rng) as topic:
        done = LakeRound(kind, local, broker, topic, tmp_path / "round", kind=kind)
        done.run(["plain", STEPS[kind]])
        done.finish()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", STEPS)
def test_every_offset_is_in_the_table_once_in_many_loads(
    kind: str, seed: str, installation: dict[str, Any], tmp_path: Path
) -> None:
    rng = random.Random(f"soak of {kind} {seed}")
    name = f"soak-{kind}-{seed}"
    with (
        soaked_drivers(tmp_path / "drivers", **installation) as drivers,
        start_broker() as broker,
        growing(broker.bootstrap_servers, name, 3, rng) as topic,
    ):
        soak(LakeRound(name, drivers, broker, topic, tmp_path / "round", kind=kind), rng, FEWER_LOADS, KILLS)
