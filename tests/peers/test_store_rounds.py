"""The fault driver of loads whose ledger and files are in an object store or HDFS, by Spark's own writers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.foreign.fetched import NotAvailable
from tests.support.foreign.mini_hdfs import MiniHdfs
from tests.support.foreign.object_stores import azurite, gcs_server
from tests.support.ledger.s3_server import BUCKET, KEYS, Gate, s3_server
from tests.support.loads.growing_topic import growing
from tests.support.loads.load_races import race_twice
from tests.support.loads.load_soaks import KILLS, SEEDS, soak, soaked_drivers
from tests.support.loads.spark_drivers import LOCAL, Drivers
from tests.support.loads.store_rounds import BucketRound, HdfsRound
from tests.support.spark.spark_environments import abfs_configs, abfs_jars, s3a_configs, s3a_jars

STEPS = ["driver killed", "store away", "compacted"]
STORES = ["s3a", "abfs", "gs"]
ROUNDS = 30
"""Loads of a long round, each with a fault."""


class Site(NamedTuple):
    """A store behind a gate. ``installation`` is what drivers need to reach it, ``session`` keys of Spark's
    for a ledger alone; without ``holds_tables`` Spark has no writer for it here.
    """

    gate: Gate
    root: str
    installation: Mapping[str, Any]
    session: Mapping[str, str]
    holds_tables: bool = True


@contextmanager
def site_of(store: str, directory: Path) -> Iterator[Site]:
    """The store of this name; this process goes past the gate. Raises `NotAvailable`."""
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        if store == "s3a":
            jars = s3a_jars()
            port = stack.enter_context(s3_server())
            variables = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
            root = f"s3a://{BUCKET}"
        else:
            jars = abfs_jars() if store == "abfs" else []
            server = azurite if store == "abfs" else gcs_server
            root, variables = stack.enter_context(server(directory / "log"))
            port = int(re.findall(r":(\d+)", str(variables))[-1])
        for name, value in variables.items():
            environment.setenv(name, value)
        gate = Gate(port)
        stack.callback(gate.close)
        if store == "gs":
            yield Site(gate, root, {}, {"fs.gs.storage.root.url": gate.endpoint}, holds_tables=False)
            return
        prompt = {f"spark.hadoop.fs.s3a.retry.{name}interval": "50ms" for name in ("", "throttle.")}
        keys = {**s3a_configs(gate.endpoint), **prompt} if store == "s3a" else abfs_configs(gate.endpoint)
        yield Site(gate, root, {"configs": {"spark.jars": ",".join(map(str, jars)), **keys}}, {})


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The store that the test names, or S3's."""
    store = getattr(request, "param", "s3a")
    try:
        with site_of(store, tmp_path_factory.mktemp(store)) as found:
            yield found
    except NotAvailable as e:
        pytest.skip(str(e))


@pytest.fixture
def round_at(site: Site, tmp_path: Path) -> Iterator[Callable[[str, Drivers], BucketRound]]:
    """A round of this seed with these drivers."""
    with ExitStack() as stack:

        def made(seed: str, drivers: Drivers) -> BucketRound:
            broker = stack.enter_context(start_broker())
            topic = growing(broker.bootstrap_servers, f"stored-{seed}", 2, random.Random(f"topic {seed}"))
            return BucketRound(
                seed, drivers, broker, stack.enter_context(topic), tmp_path / "round", gate=site.gate,
                root=site.root, session=site.session,
                table_at=None if site.holds_tables else str(tmp_path / "table"),
            )  # fmt: skip

        yield made
        site.gate.weather = lambda _: ""


@pytest.fixture(scope="module")
def local(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    directory = tmp_path_factory.mktemp("local")
    drivers = Drivers(directory, [LOCAL, LOCAL], replace_at_once=True, **site.installation)
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
def test_two_drivers_on_two_hosts_commit_each_load_once(
    local: Drivers, round_at: Callable[[str, Drivers], BucketRound], lockless: bool
) -> None:
    """What the other one wrote is not read."""
    race = round_at(f"race-{lockless}", local)
    race_twice(race, local.all(), lockless=lockless)
    race.finish()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("site", STORES, indirect=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_offset_is_loaded_once_in_many_loads(
    seed: str, site: Site, round_at: Callable[[str, Drivers], BucketRound], tmp_path: Path
) -> None:
    first = (*KILLS, *("store away",) * 4, *("compacted",) * 2)
    with soaked_drivers(tmp_path / "drivers", **site.installation) as drivers:
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
