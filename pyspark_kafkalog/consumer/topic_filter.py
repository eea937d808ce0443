"""Topics chosen by an expression, now and as they appear."""

from __future__ import annotations

from pyspark_kafkalog.zookeeper.values import BLACK_LIST, WHITE_LIST, Subscription


class TopicFilter:
    """*Thread-safe: never changes.* An expression for topics: `Whitelist` or `Blacklist`.

    Regular expressions as Python has them, matched against the whole name; a comma means "or", blanks and
    quotes around mean nothing, as in 0.7. Java's expressions differ in rare forms only; consumers of one
    group must read theirs alike.
    """

    _pattern: str

    def __init__(self, expression: str) -> None:
        """Raises `InvalidConfig` for what is not a regular expression."""
        self.expression = expression
        self.allows("")

    def allows(self, topic: str) -> bool:
        """Whether ``topic`` is consumed."""
        return bool(self.subscription(1).chosen([topic]))

    def subscription(self, streams: int) -> Subscription:
        """What a consumer registers. Raises `InvalidConfig` for less than one stream."""
        return Subscription({self.expression: streams}, self._pattern)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


class Whitelist(TopicFilter):
    """The topics that match."""

    _pattern = WHITE_LIST


class Blacklist(TopicFilter):
    """The topics that do not."""

    _pattern = BLACK_LIST
