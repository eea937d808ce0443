"""The commands about groups with members and about transactions, at the bundled broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkalog_broker.embedded import start_broker
from tests.support.client.consumer_cases import QUICK_GROUPS
from tests.support.client.group_command_cases import GroupCommandCases
from tests.support.client.transaction_command_cases import TransactionCommandCases


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with start_broker(QUICK_GROUPS) as broker:
        yield broker.bootstrap_servers


class TestAtTheBundledBroker(GroupCommandCases, TransactionCommandCases):
    pass
