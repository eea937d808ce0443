"""``kafkalog offsets``, ``groups`` and ``lag`` as their users start them, against a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafkalog_broker.embedded import EmbeddedBroker
from pyspark_kafkalog.cli import offsets
from pyspark_kafkalog.client.discovery import Cluster
from pyspark_kafkalog.client.groups import commit_offsets, committed_offsets
from pyspark_kafkalog.config.client_config import ClientConfig
from pyspark_kafkalog.errors import UnsupportedVersion
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.protocol.api.group_offsets import OffsetFetchResponse, OffsetFetchResponseGroup
from pyspark_kafkalog.protocol.api.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsResponse,
)
from pyspark_kafkalog.protocol.api.metadata import Coordinator, FindCoordinatorResponse
from pyspark_kafkalog.protocol.exchange import ApiKey
from pyspark_kafkalog.types import TopicPartition, encode_id
from tests.support.client.scripted_log import ScriptedLog, batches, serving
from tests.support.command_line import kafkalog, table
from tests.support.ledger.plans import facts, plan_of
from tests.support.protocol.raw_client import RawClient, batch


@pytest.fixture
def server(running_broker: EmbeddedBroker) -> str:
    return running_broker.bootstrap_servers


@pytest.fixture
def filled(client: RawClient, topic: str) -> str:
    """Three records in partition 0, one second apart, and one in partition 1."""
    for i in range(3):
        client.produce(topic, batch(b"x", timestamp=1_700_000_000_000 + i * 1000))
    client.produce(topic, batch(b"y"), 1)
    return topic


def commit(server: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    cluster = Cluster(ClientConfig(bootstrap_servers=server))
    commit_offsets(cluster, group, offsets)
    cluster.close()


def committed(server: str, group: str) -> dict[TopicPartition, int]:
    cluster = Cluster(ClientConfig(bootstrap_servers=server))
    found = {tp: o.offset for tp, o in committed_offsets(cluster, group).items()}
    cluster.close()
    return found


def rows(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.long("dozens of commands")
def test_offsets_show_where_partitions_begin_and_end(server: str, filled: str) -> None:
    shown = kafkalog("offsets", filled, server=server)
    assert table(shown.stdout) == [["0", "0", "3", "3"], ["1", "0", "1", "1"], ["total", "4"]]
    (one,) = rows(kafkalog("offsets", filled, "--partition", "1", "--json", server=server).stdout)
    assert one == {"topic": filled, "partition": 1, "earliest": 0, "latest": 1, "offsets": 1}


@pytest.mark.parametrize(
    ("time", "offset", "timestamp"),
    [
        ("2023-11-14T22:13:20.001Z", 1, 1_700_000_001_000),
        ("newest", 2, 1_700_000_002_000),
        ("2030-01-01", None, None),
        ("latest", 3, None),
    ],
)
def test_offsets_are_found_by_time(
    server: str, filled: str, time: str, offset: int | None, timestamp: int | None
) -> None:
    first, _ = rows(kafkalog("offsets", filled, "--time", time, "--json", server=server).stdout)
    assert (first["offset"], first["timestamp"]) == (offset, timestamp)
    shown = None if timestamp is None else f"2023-11-14T22:13:2{timestamp // 1000 % 10}.000Z"
    assert first["time"] == shown


def test_offsets_of_a_group_stand_beside_the_log(server: str, filled: str) -> None:
    commit(server, f"g-{filled}", {TopicPartition(filled, 0): 2})
    shown = kafkalog("offsets", filled, "--group", f"g-{filled}", server=server)
    assert table(shown.stdout) == [
        [filled, "0", "0", "3", "2", "1"],
        [filled, "1", "0", "1", "-", "1"],
        ["total", "2"],
    ]


def test_the_table_of_positions_is_the_same_in_three_commands(server: str, filled: str) -> None:
    group = f"g-{filled}"
    commit(server, group, {TopicPartition(filled, 0): 2})
    lag = kafkalog("lag", "--group", group, server=server).stdout
    assert kafkalog("offsets", filled, "--group", group, server=server).stdout == lag
    described = table(kafkalog("groups", "describe", group, server=server).stdout)
    assert [row[:6] for row in described[:2]] == table(lag)[:2]


@pytest.mark.parametrize(
    ("time", "fields"),
    [
        ((), {"earliest": 0, "latest": 3, "offsets": 3}),
        (("--time", "earliest"), {"offset": 0, "timestamp": None, "time": None}),
    ],
)
def test_json_has_the_group_beside_what_was_asked(
    server: str, filled: str, time: tuple[str, ...], fields: dict[str, object]
) -> None:
    group = f"g-{filled}"
    commit(server, group, {TopicPartition(filled, 0): 2})
    first, _ = rows(kafkalog("offsets", filled, "-g", group, "--json", *time, server=server).stdout)
    beside = {"group": group, "committed": 2, "lag": 1}
    assert first == {"topic": filled, "partition": 0, **fields, **beside}


def test_groups_are_listed_and_described(server: str, filled: str) -> None:
    group = f"g-{filled}"
    commit(server, group, {TopicPartition(filled, 0): 2})
    listed = rows(kafkalog("groups", "list", "--json", server=server).stdout)
    assert {"group": group, "state": "Empty", "protocol": None, "kind": "classic"} in listed
    assert [group, "Empty", "-", "classic"] in table(kafkalog("groups", "list", server=server).stdout)
    described = kafkalog("groups", "describe", group, server=server).stdout
    assert described.startswith(f"{group}: Empty, 0 members\n")
    assert table(described) == [
        [filled, "0", "0", "3", "2", "1", "-"],
        [filled, "1", "0", "1", "-", "1", "-"],
        ["total", "2"],
    ]
    missing = kafkalog("groups", "describe", "no-such-group", server=server)
    assert missing.returncode == 1
    assert missing.stderr == f"kafkalog: consumer group 'no-such-group' does not exist on {server}\n"


def test_members_are_shown_with_what_they_read() -> None:
    assigned = bytes.fromhex("0001 00000001 0001 74 00000001 00000000 ffffffff")
    members = tuple(
        DescribedGroupMember(f"m{i}", None, f"c{i}", "/10.0.0.1", b"", data)
        for i, data in enumerate((assigned, b""))
    )
    with serving(ScriptedLog(batches(range(4)))) as broker:
        broker.default(
            ApiKey.FIND_COORDINATOR,
            lambda _: FindCoordinatorResponse(coordinators=(Coordinator("g", 0, "127.0.0.1", broker.port),)),
        )
        group = DescribedGroup(0, None, "g", "Stable", "consumer", "range", members)  # type: ignore[arg-type]
        broker.default(ApiKey.DESCRIBE_GROUPS, DescribeGroupsResponse(groups=(group,)))
        nothing = OffsetFetchResponse(groups=(OffsetFetchResponseGroup("g"),))
        broker.default(ApiKey.OFFSET_FETCH, nothing)
        described = kafkalog("groups", "describe", "g", server=broker.address).stdout
        assert described.startswith(
            "g: Stable, 2 members, assigned by range\nno partitions: c1 /10.0.0.1 (m1)\n"
        )
        assert table(described) == [["t", "0", "0", "4", "-", "4", "c0", "/10.0.0.1"], ["total", "4"]]
        (document,) = rows(kafkalog("groups", "describe", "g", "--json", server=broker.address).stdout)
        assert document["members"] == [
            {"member": f"m{i}", "client": f"c{i}", "host": "/10.0.0.1"} for i in range(2)
        ]
        assert [p["member"] for p in document["partitions"]] == ["m0"]  # type: ignore[attr-defined]


def test_a_group_is_moved_and_a_dry_run_moves_nothing(server: str, filled: str) -> None:
    group, first, second = f"g-{filled}", TopicPartition(filled, 0), TopicPartition(filled, 1)
    move = ("groups", "reset", group, filled, "--to")
    tried = kafkalog(*move, "latest", "--dry-run", server=server)
    assert table(tried.stdout) == [[filled, "0", "-", "3"], [filled, "1", "-", "1"]]
    assert tried.stderr == "nothing was committed: --dry-run\n"
    assert committed(server, group) == {}
    assert kafkalog(*move, "latest", server=server).returncode == 0
    assert committed(server, group) == {first: 3, second: 1}
    moved = kafkalog(*move, "2023-11-14T22:13:21Z", "--partition", "0", server=server)
    assert table(moved.stdout) == [[filled, "0", "3", "1"]]
    assert committed(server, group) == {first: 1, second: 1}
    outside = kafkalog(*move, "2", server=server)
    assert outside.returncode == 1
    assert f"{filled}-1: offset 2 is outside [0, 1]" in outside.stderr
    assert committed(server, group) == {first: 1, second: 1}


def ledger_at(
    directory: Path, topic: str, topic_id: str, ends: dict[int, int], *, start: int = 0, killed: bool = False
) -> None:
    """The ledger of load ``loaded``: ``topic`` from ``start`` to ``ends``; if killed, without a commit."""
    ledger = Ledger.at(directory, "loaded")
    ledger.identify("", {"subscribe": topic})
    if not ends:
        return
    known = {TopicPartition(topic, p): facts(0, end, topic_id=topic_id) for p, end in ends.items()}
    plan = plan_of(known, cluster_id="", first_starts=dict.fromkeys(known, start), split=list)
    plan = ledger.write_plan(plan)
    if not killed:
        ledger.commit(plan, mode="job", run="r", receipts=False)


def topic_id(server: str, topic: str) -> str:
    cluster = Cluster(ClientConfig(bootstrap_servers=server))
    found = cluster.metadata([topic]).topics[topic].topic_id
    cluster.close()
    return encode_id(found)


def test_lag_of_a_group_and_of_a_load_stand_side_by_side(server: str, filled: str, tmp_path: Path) -> None:
    group = f"g-{filled}"
    commit(server, group, {TopicPartition(filled, 0): 1})
    ledger_at(tmp_path, filled, topic_id(server, filled), {0: 2, 1: 1})
    both = ("--group", group, "--load", "loaded", "--offsets", str(tmp_path))
    shown = kafkalog("lag", *both, server=server)
    assert table(shown.stdout) == [
        [filled, "0", "0", "3", "1", "2", "2", "1"],
        [filled, "1", "0", "1", "-", "1", "1", "0"],
        ["total", "3", "1"],
    ]
    first, _ = rows(kafkalog("lag", filled, *both, "--json", server=server).stdout)
    assert first == {
        "topic": filled, "partition": 0, "earliest": 0, "latest": 3,
        "group": group, "committed": 1, "lag": 2, "load": "loaded", "load_next": 2, "load_lag": 1,
    }  # fmt: skip


def test_a_load_of_todays_topics_has_no_lag_in_those_of_07(tmp_path: Path) -> None:
    ledger_at(tmp_path, "t", "", {0: 2})
    shown = kafkalog("lag", "--load", "loaded", "--offsets", str(tmp_path), "--option", "protocol=0.7")
    assert shown.returncode == 2
    assert "load 'loaded' does not read Kafka 0.7: omit --option protocol=0.7" in shown.stderr


def test_the_position_of_a_load_in_a_recreated_topic_counts_for_nothing(
    server: str, filled: str, tmp_path: Path
) -> None:
    ledger_at(tmp_path, filled, "AAAAAAAAAAAAAAAAAAAAAA", {0: 2})
    shown = kafkalog("lag", "--load", "loaded", "--offsets", str(tmp_path), server=server)
    assert table(shown.stdout) == [
        [filled, "0", "0", "3", "-", "3"],
        [filled, "1", "0", "1", "-", "1"],
        ["total", "4"],
    ]
    assert f"{filled}-0 was recreated since the load read it" in shown.stderr


def test_partitions_that_are_gone_are_shown_without_a_lag(server: str, tmp_path: Path) -> None:
    ledger_at(tmp_path, "gone-for-good", "", {0: 2})
    shown = kafkalog("lag", "--load", "loaded", "--offsets", str(tmp_path), server=server)
    assert shown.returncode == 0
    assert table(shown.stdout) == [["gone-for-good", "0", "-", "-", "2", "-"], ["total", "0"]]


def test_the_lag_of_a_load_that_was_killed_before_its_first_commit_begins_at_its_plan(
    server: str, filled: str, client: RawClient, tmp_path: Path
) -> None:
    ledger_at(tmp_path / "offsets", filled, topic_id(server, filled), {0: 3, 1: 1}, start=1, killed=True)
    client.produce(filled, batch(b"since"))
    # A relative path begins at the current directory.
    shown = kafkalog("lag", "--load", "loaded", "--offsets", "offsets", server=server, cwd=tmp_path)
    assert shown.returncode == 0
    assert table(shown.stdout) == [
        [filled, "0", "0", "4", "1", "3"],
        [filled, "1", "0", "1", "1", "0"],
        ["total", "3"],
    ]
    assert shown.stderr == (
        "load 1 was planned at 2026-11-21T18:00:00.123Z and not committed: 2 offsets. The next load reads "
        "exactly these\n"
    )


def test_ledgers_below_a_relative_path_are_planned_and_listed(
    server: str, filled: str, tmp_path: Path
) -> None:
    ledger_at(tmp_path / "offsets", filled, topic_id(server, filled), {0: 2, 1: 1})
    where = ("--offsets", "offsets")
    planned = kafkalog("load", "loaded", *where, "--topic", filled, "--dry-run", server=server, cwd=tmp_path)
    assert "loaded: load 2 would read 1 offset in 1 task" in planned.stdout, planned.stderr
    (listed,) = table(kafkalog("history", "loaded", *where, cwd=tmp_path).stdout)
    assert (listed[0], listed[2]) == ("1", "job")
    other = kafkalog("history", "other", "--offsets", f"file:{tmp_path}/offsets")
    assert (other.returncode, "there are loaded" in other.stderr) == (2, True)


def test_nothing_committed_is_said(server: str, tmp_path: Path) -> None:
    ledger_at(tmp_path, "t", "", {})
    shown = kafkalog("lag", "--load", "loaded", "--offsets", str(tmp_path), server=server)
    assert (shown.returncode, shown.stderr) == (
        0, "nothing is committed yet; name a topic to see its offsets\n",
    )  # fmt: skip


@pytest.mark.parametrize("command", [("lag",), ("offsets", "TOPIC")])
def test_a_group_that_is_not_known_is_an_error(server: str, filled: str, command: tuple[str, ...]) -> None:
    asked = [filled if word == "TOPIC" else word for word in command]
    shown = kafkalog(*asked, "--group", "no-such-group", server=server)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr == f"kafkalog: consumer group 'no-such-group' does not exist on {server}\n"


def test_a_group_that_has_committed_nothing_yet_is_known_by_its_members() -> None:
    with serving(ScriptedLog(batches(range(4)))) as broker:
        broker.default(
            ApiKey.FIND_COORDINATOR,
            lambda _: FindCoordinatorResponse(coordinators=(Coordinator("g", 0, "127.0.0.1", broker.port),)),
        )
        broker.default(ApiKey.OFFSET_FETCH, OffsetFetchResponse(groups=(OffsetFetchResponseGroup("g"),)))
        broker.default(
            ApiKey.LIST_GROUPS, ListGroupsResponse(groups=(ListedGroup("g", "consumer", "Stable"),))
        )
        shown = kafkalog("lag", "t", "--group", "g", server=broker.address)
    assert (shown.returncode, table(shown.stdout)) == (0, [["t", "0", "0", "4", "-", "4"], ["total", "4"]])


def test_brokers_that_do_not_list_groups_are_believed_to_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Cluster) -> None:
        raise UnsupportedVersion("the broker does not serve LIST_GROUPS")

    monkeypatch.setattr(offsets, "list_groups", refuse)
    offsets.check_group(Cluster(ClientConfig(bootstrap_servers="127.0.0.1:1")), "g")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("lag",), "lag needs --group, --load with --offsets, or both"),
        (("lag", "--load", "x"), "--load and --offsets go together"),
        (("lag", "--load", "x", "--offsets", "/nowhere"), "no load is called 'x' at /nowhere"),
        (("offsets", "t", "--time", "soon"), "--time: 'soon' is not a time; allowed: earliest"),
        (("groups", "reset", "g", "t", "--to", "soon"), "--to: 'soon' is not a position"),
        (("groups", "reset", "g", "t"), "give one of --to, --shift-by, --by-duration and --from-file"),
        (("groups", "reset", "g", "t", "--to", "0", "--shift-by", "1"), "give one of --to"),
        (("groups", "reset", "g", "--to", "0"), "name a topic or give --all-topics"),
        (("groups", "reset", "g", "t", "--all-topics", "--to", "0"), "name a topic or give --all-topics"),
        (("groups", "reset", "g", "t", "--by-duration", "2h"), "'2h' is not a duration"),
        (("groups", "reset", "g", "--from-file", "/dev/null"), "/dev/null has no offsets of group 'g'"),
        (("groups", "reset", "g", "t", "--from-file", "/dev/null"), "neither with --from-file"),
        (("consume", "t", "--group", "g", "--from", "7"), "with --group it is earliest or latest"),
        (("consume", "t", "--group", "g", "--to", "7"), "--group and --to cannot be combined"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused_with_code_2(arguments: tuple[str, ...], why: str) -> None:
    ran = kafkalog(*arguments, server="127.0.0.1:1")
    assert ran.returncode == 2
    assert why in ran.stderr
