"""``kafkalog transactions``: list and describe transactions, and abort one."""

from __future__ import annotations

from typing import Annotated

import typer

from pyspark_kafkalog.cli.connecting import DEFAULT_SERVER, AsJson, ClusterCommands, Servers, connected
from pyspark_kafkalog.cli.terminal_output import counted, show
from pyspark_kafkalog.client.transaction_admin import (
    abort_transaction,
    describe_transaction,
    list_transactions,
)
from pyspark_kafkalog.clock import SYSTEM_CLOCK, utc_text

_EXAMPLES = """\
Examples:

kafkalog transactions list --open

kafkalog transactions describe orders-loader

kafkalog transactions abort orders-loader
"""

transactions = ClusterCommands(
    no_args_is_help=True,
    help="List and describe transactions, and abort one whose producer is gone.",
    epilog=_EXAMPLES,
)
Id = Annotated[str, typer.Argument(metavar="ID", help="The transactional.id.")]


@transactions.command("list", epilog="Example: kafkalog transactions list --open")
def list_(
    only_open: Annotated[bool, typer.Option("--open", help="Only ids with an open transaction.")] = False,
    as_json: AsJson = False,
    server: Servers = DEFAULT_SERVER,
) -> None:
    """List the transactional ids of the cluster, each with the state of its last transaction."""
    with connected(server) as cluster:
        found = list_transactions(cluster, ongoing=only_open)
    rows = [
        {"transactional_id": one.transactional_id, "state": one.state, "producer_id": one.producer_id}
        for one in found
    ]
    show(rows, ["transactional_id", "state", "producer_id"], as_json=as_json)


@transactions.command("describe", epilog="Example: kafkalog transactions describe orders-loader")
def describe(transactional_id: Id, as_json: AsJson = False, server: Servers = DEFAULT_SERVER) -> None:
    """Show an id's producer, and the state and partitions of its transaction."""
    with connected(server) as cluster:
        found = describe_transaction(cluster, transactional_id)
    started = None if found.started_ms is None else utc_text(found.started_ms)
    rows = [{"topic": tp.topic, "partition": tp.partition} for tp in found.partitions]
    if as_json:
        document = {
            "transactional_id": found.transactional_id,
            "state": found.state,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "timeout_ms": found.timeout_ms,
            "started": started,
            "partitions": rows,
        }
        show([document], [], as_json=True)
        return
    typer.echo(
        f"{transactional_id}: {found.state}, producer {found.producer_id} epoch {found.producer_epoch}, "
        f"transaction.timeout.ms {found.timeout_ms:,}"
    )
    if found.started_ms is not None:
        seconds = max(SYSTEM_CLOCK.time_ms() - found.started_ms, 0) // 1000
        typer.echo(f"open for {counted(seconds, 'second')}, since {started}")
    if rows:
        show(rows, ["topic", "partition"], as_json=False)


@transactions.command("abort", epilog="Example: kafkalog transactions abort orders-loader")
def abort(transactional_id: Id, server: Servers = DEFAULT_SERVER) -> None:
    """Abort the open transaction of an id, so that readers of committed records can continue.

    A producer that still runs is fenced: its next call fails. Without this command the coordinator aborts
    it transaction.timeout.ms after its start.
    """
    with connected(server) as cluster:
        found = abort_transaction(cluster, transactional_id)
    typer.echo(
        f"aborted the transaction of {transactional_id} in {counted(len(found.partitions), 'partition')}",
        err=True,
    )
