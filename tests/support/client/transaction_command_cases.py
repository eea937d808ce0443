"""``kafkalog transactions``, whoever's broker coordinates them."""

from __future__ import annotations

import json

import pytest

from pyspark_kafkalog import Producer
from pyspark_kafkalog.errors import ProducerFenced
from tests.support.client.consumer_cases import new_topic
from tests.support.command_line import kafkalog, table


class TransactionCommandCases:
    """To be inherited, with a fixture ``servers``."""

    def test_an_open_transaction_is_shown_and_aborted(self, servers: str) -> None:
        topic = new_topic(servers, 2, "txn")

        def read() -> list[str]:
            seen = ("--isolation-level", "read_committed", "--quiet")
            return kafkalog("consume", topic, *seen, server=servers).stdout.split()

        with Producer({"bootstrap.servers": servers, "transactional.id": topic}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"lost", partition=1)
            producer.flush()
            with Producer({"bootstrap.servers": servers}) as other:
                other.send(topic, b"kept", partition=1)
            assert read() == []
            opened = kafkalog("transactions", "list", "--open", server=servers)
            assert [topic, "Ongoing"] in [row[:2] for row in table(opened.stdout)]
            shown = kafkalog("transactions", "describe", topic, "--json", server=servers)
            document = json.loads(shown.stdout)
            assert document["state"] == "Ongoing"
            assert document["partitions"] == [{"topic": topic, "partition": 1}]
            assert document["started"].startswith("20")
            lines = kafkalog("transactions", "describe", topic, server=servers).stdout.splitlines()
            assert lines[0].startswith(f"{topic}: Ongoing, producer {document['producer_id']} epoch 0, ")
            assert lines[1].startswith("open for ")
            aborted = kafkalog("transactions", "abort", topic, server=servers)
            assert (aborted.returncode, aborted.stderr) == (
                0, f"aborted the transaction of {topic} in 1 partition\n",
            )  # fmt: skip
            assert read() == ["kept"]
            with pytest.raises(ProducerFenced):
                producer.commit_transaction()
        again = kafkalog("transactions", "abort", topic, server=servers)
        assert again.returncode == 1
        assert "has no open transaction" in again.stderr
        for command in ("describe", "abort"):
            unknown = kafkalog("transactions", command, f"{topic}-other", server=servers)
            assert unknown.returncode == 1
            assert "there is no such id" in unknown.stderr
