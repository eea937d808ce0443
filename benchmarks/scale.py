"""What does a load of 100,000 partitions ask of its driver and of its ledger? By simulation.

The planner and the ledger are the real ones; the cluster is made up, and the store is a dictionary that
counts requests. Of a load of N partitions the first row has the driver's processor seconds for the plan, the
second those for the commit, which reads each task's receipt and writes each partition's offset. What a store
would take for the requests is added up, not waited for: 50 ms each, and of one in a hundred, which fails, a
pause and 50 ms more, so many at a time as an object store is asked. Each N has a process of its own, which
says how much memory it took.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections import Counter

from benchmarks.harness import LIMIT, Row, cost
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import PartitionFacts, make_plan
from pyspark_kafkalog.ledger.receipts import Receipt
from pyspark_kafkalog.ledger.stores import object_store
from pyspark_kafkalog.ledger.stores.store import Store
from pyspark_kafkalog.types import TopicPartition
from tests.support.ledger.memory_store import MemoryStore, WatchedStore

PARTITIONS = (1_000, 10_000, 100_000)
RECORDS = 360_000
"""Of a partition in an hour, where the topic gets 10 million a second."""
ANSWER_S, FAULTS = 0.05, 0.01
REQUEST_S = ANSWER_S + FAULTS * (object_store._BACKOFF_S + ANSWER_S)
LIMIT_S = 60.0
"""For the driver's own work; what the store takes is in the note."""


def run(rounds: int = 1) -> list[Row]:  # noqa: ARG001
    """Two minutes."""
    rows = []
    for count in PARTITIONS:
        code = f"from benchmarks.scale import simulate; simulate({count})"
        ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(ran.stdout)
        for step in ("plan", "commit"):
            seconds, requests = found[step]
            lanes = object_store.ObjectStore.concurrency
            at_a_store = requests * REQUEST_S / (lanes if requests > lanes else 1)
            note = f"{LIMIT}; and {at_a_store:,.1f} s for {requests:,} requests; {found[f'{step}_mb']:.1f} MB"
            if step == "commit":
                note += f"; the process took {found['memory_mb']:,.0f} MB"
            question = f"load of {count:,} partitions: {step}"
            rows.append(cost(question, seconds, LIMIT_S, "s", 1.0, note))
    return rows


def simulate(count: int) -> None:
    """A load of so many partitions; prints what its driver took."""
    memory, counts = MemoryStore(), Counter[str]()
    asked: Store = WatchedStore(memory, before=lambda operation, _: counts.update([operation]))
    ledger = Ledger(asked, "simulated")
    ledger.identify("simulated", {"subscribe": "t"})
    partitions = [TopicPartition("t", number) for number in range(count)]
    counts.clear()
    began = time.process_time()
    plan = ledger.write_plan(
        make_plan(
            number=1, parent=0, created="2026-01-01T00:00:00.000Z", cluster_id="simulated",
            isolation_level="read_uncommitted", stored={},
            facts={p: PartitionFacts("id", 0, "broker:9092", 0, 0, RECORDS) for p in partitions},
            first_starts=dict.fromkeys(partitions, 0), ends=dict.fromkeys(partitions, RECORDS),
            fail_on_data_loss=True, on_topic_recreated="fail", split=lambda ranges: ranges,
        )
    )  # fmt: skip
    planned = time.process_time() - began, counts.total()
    for index, one in enumerate(plan.ranges):
        ledger.leave_receipt(_receipt(plan.sha256, one.partition), index)
    counts.clear()
    began = time.process_time()
    ledger.commit(plan, mode="dir", run="run", read_by_run=True)
    committed = time.process_time() - began, counts.total()
    size = {name: len(data) / 1e6 for name, data in memory.records.items()}
    found = {
        "plan": planned,
        "commit": committed,
        "plan_mb": sum(mb for name, mb in size.items() if "/plans/" in name),
        "commit_mb": sum(mb for name, mb in size.items() if "/commits/" in name),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(found))


def _receipt(seal: str, partition: int) -> Receipt:
    return Receipt(
        topic="t", partition=partition, broker=-1, records=RECORDS, bytes=RECORDS * 100, first_offset=0,
        last_offset=RECORDS - 1, first_timestamp_ms=1_700_000_000_000, last_timestamp_ms=1_700_000_000_000,
        plan=1, plan_sha256=seal, topic_id="id", start=0, end=RECORDS, next=RECORDS, digest="0" * 24,
        attempt=0, host="executor", duration_ms=1000, run="run", lost=(), missing=0,
    )  # fmt: skip
