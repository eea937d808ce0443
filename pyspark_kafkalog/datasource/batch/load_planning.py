"""Plans a load from the ledger, the options and the cluster, by the rules of `ledger.plan`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from pyspark_kafkalog.clock import SYSTEM_CLOCK, Clock, utc_text
from pyspark_kafkalog.datasource.options.option_definitions import BatchOptions, LoadOptions
from pyspark_kafkalog.datasource.options.topics_and_offsets import (
    Assign,
    Committed,
    OffsetsByPartition,
    SpecificOffsets,
    Subscribe,
    check_order,
    covers,
)
from pyspark_kafkalog.datasource.reading.kafka import opened_cluster
from pyspark_kafkalog.datasource.reading.source_cluster import DataLoss, OffsetRange, SourceCluster
from pyspark_kafkalog.datasource.reading.start_positions import locate, locate_start
from pyspark_kafkalog.errors import (
    InvalidConfig,
    KafkaError,
    LoadError,
    OffsetsAgedOut,
    TopicRecreated,
    UnknownTopicOrPartition,
)
from pyspark_kafkalog.ledger.commit import Commit
from pyspark_kafkalog.ledger.history import HistoryRange, last_commit, ranges_of
from pyspark_kafkalog.ledger.ledger import Ledger
from pyspark_kafkalog.ledger.plan import PartitionFacts, Plan, Position, Range, make_plan
from pyspark_kafkalog.types import LATEST_OFFSET, NO_BROKER, TopicPartition

log = logging.getLogger(__name__)

Facts = Mapping[TopicPartition, PartitionFacts]


class PendingPlan(LoadError):
    """A plan was left without a commit, and ``onPendingPlan=fail`` forbids replaying it."""


def begin(options: BatchOptions, cluster: SourceCluster, ledger: Ledger, *, run: str) -> Plan | None:
    """The stored plan to read now, pending or new; None if nothing is new. The caller holds the ledger
    (`Ledger.hold`); ``run`` names it in the commit that discards a pending plan. Raises `PendingPlan` with
    ``onPendingPlan=fail``, `LostRace`, `LoadError`, `InvalidConfig` and `KafkaError`.
    """
    _identify(options, cluster, ledger)
    head, pending = ledger.head_and_pending()
    if pending is not None and _load(options).on_pending == "discard":
        log.warning("plan %d of %s is discarded: onPendingPlan=discard", pending.number, ledger.location)
        head = ledger.discard(pending, run)
    elif pending is not None:
        _check_pending(pending, options, cluster, ledger)
        return pending
    kept = ledger.stored(head)
    plan = _new_plan(options, cluster, head, kept)
    if plan.ranges:
        return ledger.write_plan(plan)
    if kept is None:  # a time or a group's offsets may mean a later start when there is something to read
        ledger.keep_start(plan.starts.values())
    return None


def propose(options: BatchOptions, cluster: SourceCluster, ledger: Ledger) -> Plan | None:
    """The plan that `begin` would return, writing nothing; a new one has no seal. Raises like `begin`."""
    head = pending = None
    if ledger.known():
        _identify(options, cluster, ledger)
        head, pending = ledger.head_and_pending()
    if pending is None or _load(options).on_pending == "discard":
        plan = _new_plan(options, cluster, head, ledger.stored(head))
        return plan if plan.ranges else None
    _check_pending(pending, options, cluster, ledger)
    return pending


def commit_to_group(options: BatchOptions, commit: Commit) -> None:
    """Also commit a load's next offsets to ``kafka.group.id``, if given; a failure is only logged."""
    group = options.group_id
    if group is None:
        return
    positions = {where: position.next for where, position in commit.stored.items()}
    try:
        with opened_cluster(options) as cluster:
            cluster.commit_group(group, positions)
    except KafkaError as e:
        log.warning(
            "load %d is committed, but its offsets not to group %s (the next load's will be): %s",
            commit.number, group, e,
        )  # fmt: skip


def _load(options: BatchOptions) -> LoadOptions:
    if options.load is None:
        raise LoadError("these options name no load: give loadName and offsetsPath")
    return options.load


def _identify(options: BatchOptions, cluster: SourceCluster, ledger: Ledger) -> None:
    subscription = options.subscription
    if isinstance(subscription, Assign):
        given = {"assign": " ".join(map(str, subscription.partitions))}
    elif isinstance(subscription, Subscribe):
        given = {"subscribe": ",".join(subscription.topics)}
    else:
        given = {"subscribePattern": subscription.pattern}
    ledger.identify(cluster.cluster_id(), given, protocol=cluster.protocol)


def _check_pending(pending: Plan, options: BatchOptions, cluster: SourceCluster, ledger: Ledger) -> None:
    if _load(options).on_pending == "fail":
        raise PendingPlan(
            f"plan {pending.number} of {ledger.location}, made {pending.created}, was not committed: its "
            "run failed or is still running. onPendingPlan=replay reads the same offsets again, "
            "onPendingPlan=discard makes a new plan"
        )
    level = options.isolation_level
    if pending.isolation_level != level:
        raise InvalidConfig(
            f"kafka.isolation.level is {level}, and plan {pending.number} of {ledger.location}, which is "
            f"pending, was made with {pending.isolation_level}: use that until it is committed, or "
            "onPendingPlan=discard to make a new plan"
        )
    _check_readable(pending, cluster, ledger, fail_on_data_loss=options.fail_on_data_loss)


def _check_readable(plan: Plan, cluster: SourceCluster, ledger: Ledger, *, fail_on_data_loss: bool) -> None:
    """Refuse a plan whose offsets are gone: no replay of it would succeed."""
    planned = {p.key: p for p in plan.partitions if p.ranges}
    way_out = (
        f"plan {plan.number} of {ledger.location} can no longer be read as it is: onPendingPlan=discard "
        "makes a new plan"
    )
    try:
        facts = cluster.facts(sorted(planned))
    except UnknownTopicOrPartition as e:
        if any(where.broker != NO_BROKER for where in planned):
            raise LoadError(f"{e}. If a broker is away, start it and load again; else {way_out}") from e
        raise TopicRecreated(f"{e}; {way_out}") from e
    for where, p in planned.items():
        found = facts[where]
        other = p.topic_id and found.topic_id and p.topic_id != found.topic_id
        if other or p.end > found.latest:
            raise TopicRecreated(
                f"{where} was deleted and created again, or truncated, after it was planned: offsets "
                f"[{p.start}, {p.end}) of topic id {p.topic_id or '-'} were planned, topic id "
                f"{found.topic_id or '-'} "
                f"holds [{found.earliest}, {found.latest}); {way_out}, with onTopicRecreated=earliest or skip"
            )
        if p.start < found.earliest and fail_on_data_loss:
            raise OffsetsAgedOut(
                f"{where}: {min(p.end, found.earliest) - p.start} offsets from {p.start} on aged out after "
                f"they were planned, the log begins at {found.earliest}; {way_out}, failOnDataLoss=false "
                "reads what is left"
            )


def _new_plan(
    options: BatchOptions,
    cluster: SourceCluster,
    head: Commit | None,
    stored: Mapping[TopicPartition, Position] | None,
    clock: Clock = SYSTEM_CLOCK,
) -> Plan:
    """``stored`` is None before the first load, and empty if that one found no partition."""
    load = _load(options)
    is_first, stored = stored is None, stored or {}
    partitions = sorted(cluster.leaders())
    # Before the logs' ends are looked up, so that no record written meanwhile lies after them.
    starts = locate_start(options, cluster, partitions) if is_first else {}
    starts |= cluster.resolve({p: start for p, start in starts.items() if start == LATEST_OFFSET})
    ends = locate(options.end, partitions, look_up=cluster.offsets, missing_is_latest=True)
    ends |= cluster.resolve(ends)
    facts = cluster.facts(partitions)
    first_starts, ends = _starts(options, starts, facts), _ends(options, ends, facts)
    if is_first:
        check_order(first_starts, ends, resolved=True)
    cluster.check_positions(first_starts)
    cluster.check_positions(ends)
    return make_plan(
        number=1 if head is None else head.number + 1,
        parent=0 if head is None else head.number,
        created=utc_text(clock.time_ms()),
        cluster_id=cluster.cluster_id(),
        isolation_level=options.isolation_level,
        stored=stored,
        facts=_compared(cluster, stored, facts),
        first_starts=first_starts,
        ends=ends,
        fail_on_data_loss=options.fail_on_data_loss,
        on_topic_recreated=load.on_recreated,
        split=lambda ranges: _plain(cluster.split([OffsetRange(*r) for r in ranges])),
        cap=lambda ranges: _plain(cluster.cap([OffsetRange(*r) for r in ranges], load)),
    )


def _compared(cluster: SourceCluster, stored: Mapping[TopicPartition, Position], facts: Facts) -> Facts:
    """The facts, with logs marked that were recreated: in 0.7, no message begins at the position."""
    found = dict(facts)
    for where, position in stored.items():
        if where in facts and facts[where].earliest < position.next < facts[where].latest:
            try:
                cluster.check_positions({where: position.next})
            except InvalidConfig as e:
                log.warning("the position of the load: %s", e)
                found[where] = replace(facts[where], is_other_log=True)
    return found


def _starts(options: BatchOptions, asked: OffsetsByPartition, facts: Facts) -> OffsetsByPartition:
    for where, start in asked.items():
        log_ends = facts[where]
        if 0 <= start < log_ends.earliest and options.fail_on_data_loss:
            raise DataLoss(OffsetRange(where, start, log_ends.earliest), log_ends.earliest, log_ends.latest)
    return {where: max(start, facts[where].earliest) for where, start in asked.items()}


def _ends(options: BatchOptions, asked: OffsetsByPartition, facts: Facts) -> OffsetsByPartition:
    for where, end in asked.items():
        log_ends = facts[where]
        if end > log_ends.latest and options.fail_on_data_loss:
            raise DataLoss(OffsetRange(where, log_ends.latest, end), log_ends.earliest, log_ends.latest)
    return {where: min(end, facts[where].latest) for where, end in asked.items()}


def _plain(parts: Sequence[OffsetRange]) -> list[Range]:
    return [(part.topic_partition, part.start, part.end) for part in parts]


def read_again(options: BatchOptions, load: LoadOptions) -> BatchOptions:
    """The plain read of earlier loads' offsets, of the partitions subscribed to."""
    ledger, start = Ledger.at(load.offsets_path, load.name), options.start
    part = HistoryRange(until=start.number) if isinstance(start, Committed) else load.history
    if part is None:
        raise InvalidConfig("neither between, asOf nor startingOffsets=commit:N is given")
    positions = ledger.commit_at(last_commit(ledger, part)).stored
    options = replace(options, topic_ids={p.topic: p.topic_id for p in positions.values()}, load=None)
    if isinstance(start, Committed):
        offsets = {key: p.next for key, p in positions.items()}
        return replace(options, start=structs.replace(start, offsets=offsets))
    ranges = ranges_of(ledger, part)
    spans = {key: span for key, span in ranges.items() if covers(options.subscription, key)}
    if not spans:
        topics = ", ".join(sorted({key.topic for key in ranges}))
        raise InvalidConfig(f"load {load.name!r} read {topics} then, and none of it is subscribed to")
    return replace(
        options,
        subscription=Assign(tuple(sorted(spans))),
        start=SpecificOffsets({key: start for key, (start, _) in spans.items()}),
        end=SpecificOffsets({key: end for key, (_, end) in spans.items()}),
    )
