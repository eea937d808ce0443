"""What docs/migration.md says of streams, with Spark's own connector on one side and ours on the other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from tests.support.datasource.both_connectors import OURS, THEIRS, Both, ParityTopic
from tests.support.datasource.stream_runs import Batch, StreamRuns
from tests.support.foreign.foreign_face import messages

MANUAL = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")


@pytest.fixture
def both(both_of: Any, own_broker: EmbeddedBroker) -> Both:
    found: Both = both_of(own_broker.bootstrap_servers)
    return found


@pytest.fixture
def topic(both: Both, topic_name: str) -> ParityTopic:
    """Seven records in partition 0, three in partition 1."""
    topic = ParityTopic.make(both.servers, topic_name, 2)
    topic.add(0, messages(7))
    topic.add(1, messages(3))
    return topic


def stream(both: Both, source: str, checkpoint: Path, **options: object) -> StreamRuns:
    return StreamRuns(both.spark, source, both.servers, checkpoint, options)


def offsets_of(batches: list[Batch]) -> list[tuple[int, int]]:
    return [(row.partition, row.offset) for batch in batches for row in batch.rows]


def recipe(name: str) -> Any:
    """A function of the manual's, as it stands there."""
    (code,) = (
        code for code in re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL) if f"def {name}(" in code
    )
    namespace: dict[str, Any] = {}
    exec(compile(code, "docs/migration.md", "exec"), namespace)
    return namespace[name]


def test_a_query_continues_from_a_checkpoint_of_sparks_connector(
    both: Both, topic: ParityTopic, tmp_path: Path
) -> None:
    same = {"subscribe": topic.name, "startingOffsets": "earliest"}
    assert len(offsets_of(stream(both, THEIRS, tmp_path, **same).run())) == 10
    topic.add(1, messages(2))
    ours = stream(both, OURS, tmp_path, **same)
    assert offsets_of(ours.run()) == [(1, 3), (1, 4)]
    topic.add(0, messages(1))
    assert offsets_of(ours.run()) == [(0, 7)]
    # And there is no way back on the same checkpoint.
    topic.add(0, messages(1))
    with pytest.raises(Exception, match=r"offsets|Expected e\.g\."):
        stream(both, THEIRS, tmp_path, **same).run()


def test_a_batch_that_sparks_connector_planned_and_did_not_finish_is_the_same_batch_in_ours(
    both: Both, topic: ParityTopic, tmp_path: Path
) -> None:
    same = {"subscribe": topic.name, "startingOffsets": "earliest"}
    theirs = stream(both, THEIRS, tmp_path, **same)
    assert len(offsets_of(theirs.run())) == 10
    topic.add(0, messages(2))
    theirs.run()
    (tmp_path / "commits" / "1").unlink()  # as after a crash between the two
    (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    topic.add(0, messages(3))
    assert offsets_of(stream(both, OURS, tmp_path, **same).run()) == [(0, n) for n in range(7, 12)]


@pytest.mark.parametrize(("former", "next_one"), [(THEIRS, OURS), (OURS, THEIRS)])
def test_a_new_query_begins_where_the_last_one_ended(
    both: Both, topic: ParityTopic, tmp_path: Path, former: str, next_one: str
) -> None:
    stream(both, former, tmp_path / "old", subscribe=topic.name, startingOffsets="earliest").run()
    topic.add(0, messages(1))
    topic.add(1, messages(2))
    start = recipe("last_offsets")(tmp_path / "old")
    assert json.loads(start) == {topic.name: {"0": 7, "1": 3}}
    new = stream(both, next_one, tmp_path / "new", subscribe=topic.name, startingOffsets=start)
    assert offsets_of(new.run()) == [(0, 7), (1, 3), (1, 4)]


def test_what_both_read_can_be_compared_in_one_session(both: Both, topic: ParityTopic) -> None:
    compare = recipe("differences")
    options = {"kafka.bootstrap.servers": both.servers, "subscribe": topic.name}
    ends = {**options, "endingOffsets": topic.offsets(p0=7, p1=3)}
    assert compare(both.spark, ends) == (10, 0, 0)
