"""``kafkalog groups`` and ``kafkalog consume --group`` with members, whoever's broker coordinates them."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafkalog import TopicPartition, committed_offsets
from tests.support.client.consumer_cases import Seat, drive, new_topic, produce
from tests.support.command_line import kafkalog, table


class GroupCommandCases:
    """To be inherited, with a fixture ``servers``."""

    @pytest.fixture(params=["classic", "consumer"])
    def protocol(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    def test_consume_reads_on_where_its_group_has_stopped(
        self, servers: str, protocol: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pyspark_kafkalog.cli.consume._PATIENCE_SECONDS", 90.0)
        topic, group = new_topic(servers, 2), f"g-{uuid.uuid4().hex[:8]}"
        produce(servers, topic, 20, 2)

        def consume(*more: str) -> list[str]:
            chosen = ("--group", group, "--property", f"group.protocol={protocol}", "--quiet")
            ran = kafkalog("consume", topic, *chosen, *more, server=servers)
            assert (ran.returncode, ran.stderr) == (0, "")
            return ran.stdout.split()

        first = consume("--max", "5")
        assert len(first) == 5
        assert sum(one.offset for one in committed_offsets(servers, group).values()) == 5
        rest = consume()
        assert sorted(map(int, first + rest)) == list(range(20))
        assert consume() == []

    def test_members_are_shown_and_in_the_way_of_what_would_pull_offsets_from_under_them(
        self, servers: str, protocol: str
    ) -> None:
        topic, group = new_topic(servers, 2), f"g-{uuid.uuid4().hex[:8]}"
        produce(servers, topic, 10, 2)
        seat = Seat(servers, group, protocol, group_instance_id="i1", client_id="someone").subscribe(topic)
        try:
            drive([seat], lambda: len(seat.got) == 10)
            seat.consumer.commit()

            def described() -> dict[str, Any]:
                (one,) = map(json.loads, self.said(servers, "describe", group, "--members", "--json"))
                return dict(one)

            # The broker knows what a member of the newer protocol has from its next heartbeat.
            drive([seat], lambda: described()["assigned"] == {topic: [0, 1]})
            one = described()
            assert (one["instance"], one["client"]) == ("i1", "someone")
            assert one.get("target") == (one["assigned"] if protocol == "consumer" else None)
            shown = "\n".join(self.said(servers, "describe", group))
            assert shown.startswith(f"{group}: Stable, 1 member, assigned by ")
            assert [row[:7] for row in table(shown)[:2]] == [
                [topic, str(n), "0", "5", "5", "0", "someone"] for n in range(2)
            ]
            listed = {one["group"]: one for one in map(json.loads, self.said(servers, "list", "--json"))}
            assert listed[group] == {
                "group": group, "state": "Stable", "protocol": "consumer", "kind": protocol,
            }  # fmt: skip
            for refused, why in (
                (("reset", group, topic, "--to", "earliest"), "the group has members"),
                (("reset", group, topic, "--to", "earliest", "--dry-run"), "the group has members"),
                (("delete", group), "it has members"),
                (("delete-offsets", group, topic), "members are subscribed"),
            ):
                ran = kafkalog("groups", *refused, server=servers)
                assert ran.returncode == 1
                assert why in ran.stderr
        finally:
            seat.consumer.close()

    def test_offsets_are_moved_saved_and_deleted(self, servers: str, tmp_path: Path) -> None:
        topic, group = new_topic(servers, 2), f"g-{uuid.uuid4().hex[:8]}"
        produce(servers, topic, 20, 2)
        p0, p1 = TopicPartition(topic, 0), TopicPartition(topic, 1)

        def stored() -> dict[TopicPartition, int]:
            return {tp: one.offset for tp, one in committed_offsets(servers, group).items()}

        self.said(servers, "reset", group, topic, "--to", "4")
        saved = tmp_path / "saved.csv"
        saved.write_text("\n".join(self.said(servers, "reset", group, topic, "--shift-by", "-1", "--csv")))
        assert stored() == {p0: 3, p1: 3}
        assert saved.read_text().split() == [f"{topic},0,3", f"{topic},1,3"]
        self.said(servers, "reset", group, topic, "--shift-by", "100", "--partition", "1")
        assert stored() == {p0: 3, p1: 10}
        self.said(servers, "reset", group, "--all-topics", "--by-duration", "PT1H")
        assert stored() == {p0: 0, p1: 0}
        self.said(servers, "reset", group, "--from-file", str(saved))
        assert stored() == {p0: 3, p1: 3}
        # A file of kafka-consumer-groups.sh for several groups.
        saved.write_text(f'"{group}","{topic}",0,7\n"other","{topic}",1,9\n')
        self.said(servers, "reset", group, "--from-file", str(saved), "--dry-run")
        assert stored() == {p0: 3, p1: 3}
        self.said(servers, "reset", group, "--from-file", str(saved))
        assert stored() == {p0: 7, p1: 3}
        self.said(servers, "delete-offsets", group, topic, "--partition", "0")
        assert stored() == {p1: 3}
        self.said(servers, "delete", group)
        gone = kafkalog("groups", "delete", group, server=servers)
        assert gone.returncode == 1
        assert "there is no such group" in gone.stderr

    @staticmethod
    def said(servers: str, *arguments: str) -> list[str]:
        """The lines of a command that must succeed."""
        ran = kafkalog("groups", *arguments, server=servers)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()
