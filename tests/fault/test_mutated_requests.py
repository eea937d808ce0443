"""Good requests of every API and version, mutated: the broker stays up, keeps its data and serves others.

Half of the mutated record sets get a correct checksum again, so that what stands after it is attacked too.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kafkalog_broker.embedded import EmbeddedBroker, start_broker
from kafkalog_broker.server import handlers
from kafkalog_broker.server.dispatch import REGISTRY
from pyspark_kafkalog.errors import KafkaError
from pyspark_kafkalog.formats.compression import Codec
from pyspark_kafkalog.protocol.exchange import ApiKey, encode_request
from tests.support.formats.batch_bytes import resealed
from tests.support.formats.legacy_bytes import entry
from tests.support.network.broker_process import MIB, growing_less_than
from tests.support.protocol.good_requests import TOPIC, good_request, good_requests
from tests.support.protocol.raw_client import RawClient, batch, decode, produce_request

UNTOUCHED = "untouched-" + "z" * 40
"""A name that few changed bits do not lead to."""

FRAMES_PER_CONNECTION = 20
_EXTREMES = (0, -1, 1, 2**31 - 1, -(2**31), 2**24, 65_535, 255)


def good_frames(rng: random.Random) -> Iterator[bytearray]:
    """Frames of every API in every version that is served, without end; every third is a Produce."""
    requests = good_requests()
    assert handlers.NOT_SERVED  # importing them fills the registry
    assert {*requests, ApiKey.PRODUCE} == set(REGISTRY)
    kinds = [(key, version) for key in requests for version in _served(key)]
    while True:
        rng.shuffle(kinds)
        for number, (key, version) in enumerate(kinds):
            if number % 2 == 0:
                yield produced(rng)
            yield framed(good_request(key, version), version)


def produced(rng: random.Random) -> bytearray:
    """A Produce of a record set which may be mutated inside, half of the time under a checksum that fits."""
    version = rng.choice(_served(ApiKey.PRODUCE))
    if version >= 3:
        records = bytearray(
            batch(
                *[b"value %d" % i * rng.randrange(9) for i in range(rng.randrange(1, 9))],
                codec=rng.choice(list(Codec)),
            )
        )
        if rng.random() < 0.7:
            mutate(records, rng, first=21)
            if rng.random() < 0.5:
                records = bytearray(resealed(records))
    else:
        records = bytearray(entry(0, rng.randrange(2), b"value") * rng.randrange(1, 9))
        if rng.random() < 0.7:
            mutate(records, rng, first=0)
    return framed(
        produce_request({(TOPIC, rng.randrange(2)): bytes(records)}, acks=rng.choice((1, -1, 0))), version
    )


def _served(key: ApiKey) -> range:
    low, high = REGISTRY[key].versions
    return range(low, high + 1)


def framed(request: object, version: int) -> bytearray:
    parts = encode_request(request, version=version, correlation_id=1, client_id="c")
    return bytearray(b"".join(bytes(part) for part in parts))


def mutate(data: bytearray, rng: random.Random, first: int) -> None:
    """Change ``data`` from byte ``first`` on, in one to three of the ways that bytes go wrong."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(first, len(data)) if len(data) > first else first
        match rng.randrange(5):
            case 0:
                for _ in range(rng.randrange(1, 9)):
                    if len(data) > first:
                        data[rng.randrange(first, len(data))] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 4] = struct.pack(">i", rng.choice(_EXTREMES))
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 30))
            case 3:
                del data[at : at + rng.randrange(1, 30)]
            case 4:
                data[at:at] = data[rng.randrange(first, len(data) + 1) :][:60]


def attack(port: int, seed: int, count: int) -> None:
    """Send ``count`` mutated frames, some in a row on each connection; run in a process of its own."""
    rng = random.Random(seed)
    frames = good_frames(rng)
    while count > 0:
        with RawClient(port) as client:
            client.socket.settimeout(0.05)
            with suppress(OSError):
                for _ in range(FRAMES_PER_CONNECTION):
                    data = next(frames)
                    if rng.random() < 0.8:
                        mutate(data, rng, first=4)
                    if rng.random() < 0.98:
                        data[:4] = struct.pack(">i", len(data) - 4)
                    client.send_bytes(bytes(data))
                    count -= 1
                client.socket.shutdown(1)
                while client.socket.recv(1 << 16):
                    pass


def attacked(seed: int, count: int) -> list[float]:
    """Attack a broker; the latencies in seconds of a good client's produce and fetch meanwhile.

    At the end the broker has the good client's records, and no others in their place, also after a restart.
    """
    latencies: list[float] = []
    with start_broker({"auto.create.topics.enable": False}) as broker:
        with RawClient(broker.port) as client:
            assert client.create_topic(UNTOUCHED).error_code == 0
            assert client.create_topic(TOPIC, 2).error_code == 0
        attacker = multiprocessing.get_context("spawn").Process(
            target=attack, args=(broker.port, seed, count)
        )
        with growing_less_than(broker.pid, 256 * MIB):
            attacker.start()
            with RawClient(broker.port) as client:
                while attacker.is_alive():
                    began = time.monotonic()
                    assert client.produce(UNTOUCHED, batch(b"%d" % len(latencies))).error_code == 0
                    assert client.fetch(UNTOUCHED, len(latencies)).error_code == 0
                    latencies.append((time.monotonic() - began) / 2)
                    time.sleep(0.005)
            attacker.join()
        assert attacker.exitcode == 0
        check_kept(broker, len(latencies))
        broker.kill()
        broker.start()
        check_kept(broker, len(latencies))
    return latencies


def check_kept(broker: EmbeddedBroker, count: int) -> None:
    """Every record of the good client is there; what was attacked can be read, or fails its checks."""
    with RawClient(broker.port) as client:
        assert [r.value for r in client.read(UNTOUCHED)] == [b"%d" % i for i in range(count)]
        for partition in (0, 1):
            data = client.fetch(TOPIC, 0, partition, max_bytes=1 << 24)
            assert data.error_code == 0
            with suppress(KafkaError):
                decode(data)


def test_every_api_has_a_good_request_in_every_version_to_mutate() -> None:
    for key in good_requests():
        for version in _served(key):
            assert framed(good_request(key, version), version)[4:8] == struct.pack(">hh", key, version)


@pytest.mark.long("thousands of hostile requests")
def test_mutated_requests_do_no_harm() -> None:
    assert attacked(seed=1, count=3_000)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 104))
def test_many_mutated_requests_do_no_harm_and_delay_nobody(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    latencies = attacked(seed, count=60_000)
    median, worst = statistics.median(latencies) * 1000, max(latencies) * 1000
    with capsys.disabled():
        print(f"seed {seed}: others waited {median:.1f} ms (median), {worst:.0f} ms (worst)")  # noqa: T201
    assert median < 5
    assert worst < 250
