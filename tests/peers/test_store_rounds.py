"""The fault driver of loads whose ledger and files are in an object store or HDFS, by Spark's own writers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from broker.embedded import start_broker
from tests.fault.loads.test_drivers_race import committed, load_until_others_were_refused
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.mini_hdfs import MiniHdfs
from tests.support.ledger.s3_server import KEYS, Gate, s3_server
from tests.support.loads.growing_topic import growing
from tests.support.loads.load_soaks import KILLS, SEEDS, soak, soaked_drivers
from tests.support.loads.spark_drivers import LOCAL, Drivers
from tests.support.loads.store_rounds import BucketRound, HdfsRound
from tests.support.spark.spark_environments import s3a_configs, s3a_jars

STEPS = ["driver killed", "store away", "compacted"]
ROUNDS = 30
"""Loads of a long round, each with a fault."""


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    """A server of S3 behind a gate; this process goes past the gate."""
    with s3_server() as port, pytest.MonkeyPatch.context() as environment:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
            environment.setenv(name, value)
        gate = Gate(port)
        yield gate
        gate.close()


@pytest.fixture(scope="module")
def installation(gate: Gate) -> dict[str, Any]:
    """What drivers need to write through the gate."""
    try:
        jars = ",".join(map(str, s3a_jars()))
    except NotAvailable as e:
        pytest.skip(str(e))
    prompt = {f"spark.hadoop.fs.s3a.retry.{name}interval": "50ms" for name in ("", "throttle.")}
    return {"configs": {"spark.jars": jars, **s3a_configs(gate.endpoint), **prompt}}


@pytest.fixture
def round_at(gate: Gate, tmp_path: Path) -> Iterator[Callable[[str, Drivers], BucketRound]]:
    """A round of this seed with these drivers."""
    with ExitStack() as stack:

        def made(seed: str, drivers: Drivers) -> BucketRound:
            broker = stack.enter_context(start_broker())
            topic = growing(broker.bootstrap_servers, f"stored-{seed}", 2, random.Random(f"topic {seed}"))
            return BucketRound(
                seed, drivers, broker, stack.enter_context(topic), tmp_path / "round", gate=gate
            )

        yield made
        gate.weather = lambda _: ""


@pytest.fixture(scope="module")
def local(installation: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path_factory.mktemp("local"), [LOCAL, LOCAL], replace_at_once=True, **installation)
    drivers.all()
    yield drivers
    drivers.stop()


def test_every_offset_is_loaded_once_in_a_short_round(
    local: Drivers, round_at: Callable[[str, Drivers], BucketRound]
) -> None:
    done = round_at("short", local)
    done.run(["plain", *STEPS])
    done.finish()


@pytest.mark.parametrize("lockless", [False, True], ids=["locks", "no locks"])
def test_of_two_drivers_on_two_hosts_one_commits_each_load(
    local: Drivers, round_at: Callable[[str, Drivers], BucketRound], lockless: bool
) -> None:
    """What the other one wrote is not read."""
    race = round_at(f"race-{lockless}", local)
    racers = local.all()
    answers: list[dict[str, Any]] = []
    orders = [race.order() | {"lockless": lockless, "host": f"loader-{n}"} for n, _ in enumerate(racers)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(load_until_others_were_refused, racers, orders, repeat(answers)))
    refused = {answer["error"] for answer in answers if not answer["ok"]}
    race.note(f"{len(answers)} attempts, committed {committed(answers)}, refused with {refused}")
    assert sorted(committed(answers)) == [c.number for c in race.ledger.history()]
    assert refused == ({"LostRace"} if lockless else {"LoadBusy"})
    race.finish()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_offset_is_loaded_once_in_many_loads(
    seed: str,
    installation: dict[str, Any],
    round_at: Callable[[str, Drivers], BucketRound],
    tmp_path: Path,
) -> None:
    first = (*KILLS, *("store away",) * 4, *("compacted",) * 2)
    with soaked_drivers(tmp_path / "drivers", **installation) as drivers:
        done = round_at(f"soak-{seed}", drivers)
        soak(done, random.Random(f"soak at a store {seed}"), ROUNDS, first)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_offset_is_loaded_once_in_an_hdfs_that_is_killed(seed: str, tmp_path: Path) -> None:
    try:
        hdfs = MiniHdfs(tmp_path).start()
    except NotAvailable as e:
        pytest.skip(str(e))
    rng = random.Random(f"soak in HDFS {seed}")
    try:
        with (
            soaked_drivers(tmp_path / "drivers") as drivers,
            start_broker() as broker,
            growing(broker.bootstrap_servers, f"in-hdfs-{seed}", 2, rng) as topic,
        ):
            done = HdfsRound(f"hdfs {seed}", drivers, broker, topic, tmp_path / "round", hdfs=hdfs)
            soak(done, rng, ROUNDS, (*KILLS, *("store away",) * 3, "compacted"))
    finally:
        hdfs.kill()
