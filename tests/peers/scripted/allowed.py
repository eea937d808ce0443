"""Where our broker answers otherwise than Apache Kafka: ``docs/compatibility.md`` has the reasons."""

from __future__ import annotations

from typing import NamedTuple


class Allowed(NamedTuple):
    """A difference that is meant: patterns of a step and of a place in its answer, and why."""

    step: str
    place: str
    why: str


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        ".*", ".*error_message", "Texts of errors are ours, also where Kafka sends a code without a text."
    ),
    # --- records
    Allowed(
        "appending .*", ".*log_start_offset", "Produce: an error does not say where the log begins (-1)."
    ),
    Allowed(
        "appending .*: cut short",
        ".*error_code",
        "Produce: a batch that is cut short is CORRUPT_MESSAGE (2), as one with a wrong checksum; in Kafka it"
        " is INVALID_RECORD (87).",
    ),
    Allowed(
        "(appending .*: the same|a transactional producer .*: write) again",
        ".*log_append_time_ms",
        "Produce: a repeated batch of an idempotent producer gets -1 for the time of append, as it did the"
        " first time; Kafka sends a record's own time.",
    ),
    Allowed(
        "(fetching .*: (before|beyond|still beyond)|deleting records .*: a fetch below) .*",
        r".*(high_watermark|log_start_offset)",
        "Fetch: OFFSET_OUT_OF_RANGE says which offsets there are; Kafka sends -1.",
    ),
    Allowed(
        "fetching .*: (no such|an unknown) .*",
        ".*aborted_transactions",
        "Fetch: with an error the list of aborted transactions is null; Kafka's may be empty instead.",
    ),
    Allowed(
        "a transactional producer .*: producers while it is open",
        ".*coordinator_epoch",
        "DescribeProducers: the coordinator's epoch is 0, also before its first marker; Kafka's is -1 then.",
    ),
    # --- groups
    Allowed(
        "members that share a topic .*: the second joins again",
        ".*",
        "ConsumerGroupHeartbeat: a member that joins again under its own id goes on at once; Kafka fences it"
        " (110) until its session is over.",
    ),
    Allowed(
        "classic members of newer groups .*: with metadata of nothing",
        ".*error_code",
        "JoinGroup: a subscription that cannot be read is INCONSISTENT_GROUP_PROTOCOL (23) in a group of the"
        " newer protocol; in Kafka UNKNOWN_SERVER_ERROR (-1).",
    ),
    # --- topics
    Allowed(
        "creating topics .*: only validated",
        ".*topic_id",
        "CreateTopics: a request that is only validated gets no topic id; Kafka sends one that nobody has.",
    ),
    Allowed(
        "describing topics .*: by id",
        "brokers|cluster_id|controller_id",
        "Metadata 10 and 11: topics are not looked up by id. Ours says so of each topic, Kafka sends an empty"
        " answer.",
    ),
    # --- properties
    Allowed(".*", r".*configs\.generation", "Topics have the property `generation`: 0.7, or 0.8 and later."),
    Allowed(
        ".*",
        r".*configs\.remote\.log\..*",
        "There is no tiered storage, and no `remote.log.*` property of topics.",
    ),
    Allowed(
        ".*", r".*configs\.flush\.ms\..*", "`flush.ms` is 3000 by default: there are no replicas to count on."
    ),
    Allowed(
        ".*",
        r".*configs\.message\.(format\.version|downconversion\.enable|timestamp\.difference\.max\.ms).*",
        "Topics have `message.format.version`, whose `producer` keeps what was sent, and two other properties"
        " that Kafka 4 no longer has.",
    ),
    Allowed(
        ".*",
        r".*configs\.message\.timestamp\.after\.max\.ms\..*",
        "`message.timestamp.after.max.ms` is an hour by default, as in Kafka 4; Kafka 3.9 has no limit.",
    ),
    Allowed(
        ".*",
        r".*configs\.min\.insync\.replicas\..*",
        "`min.insync.replicas` is a default; Kafka 4 sets it for all brokers, also to 1.",
    ),
    Allowed(
        "describing properties .*: of all brokers",
        "results.*",
        "Nothing is set for all brokers at first; in Kafka 4 `min.insync.replicas` is.",
    ),
    Allowed(
        ".*",
        r".*synonyms\[\d\]\.(name|value)",
        "DescribeConfigs: the last synonym of a property is its own default; Kafka names one in hours"
        " (`log.retention.hours`), or the log cleaner's.",
    ),
    Allowed(
        "describing properties .*: a topic's .*",
        r".*synonyms",
        "DescribeConfigs: every property of a topic has its default among the synonyms; in Kafka a few have"
        " none.",
    ),
    Allowed(
        "describing properties .*: the broker's (listeners|num.network.threads|producer.id.expiration.ms)",
        r".*",
        "Listeners, threads and `producer.id.expiration.ms` cannot be changed without a restart.",
    ),
    Allowed("describing properties .*: the broker's node.id", r".*synonyms.*", "`node.id` is 0 by default."),
    Allowed(
        "changing properties .*: an operation that is none",
        ".*error_code",
        "IncrementalAlterConfigs: an unknown operation is INVALID_REQUEST (42); Kafka fails with -1.",
    ),
    Allowed(
        "values of properties .*: (cleanup.policy=','|in force after [5-9]) .*",
        r".*(error_code|configs\.cleanup\.policy\.(value|config_source))",
        "Empty words in lists are dropped; in `cleanup.policy` Kafka refuses them.",
    ),
    Allowed(
        "values of properties .*: min.cleanable.dirty.ratio='0.5d' .*",
        ".*error_code",
        "Numbers with a fraction are decimal; Java also reads `0.5d` and hexadecimal ones.",
    ),
    # --- groups and the broker
    Allowed(
        "describing groups .*: with operations",
        ".*operations",
        "DescribeGroups: the operations that are allowed are Kafka 3.9's; Kafka 4 has more.",
    ),
    Allowed(
        "the cluster .*: endpoints .*",
        "error_code",
        "DescribeCluster: endpoints other than brokers are MISMATCHED_ENDPOINT_TYPE (114); Kafka fails with"
        " -1 where it does not know the kind.",
    ),
)
