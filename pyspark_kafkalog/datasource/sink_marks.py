"""What is written once, and the text by which it is known again. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple

from pyspark_kafkalog.errors import KafkaError

_VERSION = 1


class WrittenOtherwise(KafkaError):
    """What was committed under this name is not what is to be written now."""


class Unit(NamedTuple):
    """What is to be written once: a batch of a query, or a write that was given an id."""

    name: str
    batch: int


class Mark(NamedTuple):
    """What a task has committed last: of which unit, and how many rows."""

    unit: Unit
    row_count: int

    def text(self) -> str:
        """As it is committed; of some 100 bytes, where brokers take 4096."""
        return json.dumps(
            {"v": _VERSION, "unit": self.unit.name, "batch": self.unit.batch, "rows": self.row_count}
        )

    @classmethod
    def parse(cls, text: str) -> Mark:
        """What `text` made.

        Raises:
            WrittenOtherwise: it is something else: the group is another program's, or of a later version.
        """
        try:
            read = json.loads(text)
            if read["v"] != _VERSION:
                raise ValueError(f"version {read['v']}")
            return cls(Unit(str(read["unit"]), int(read["batch"])), int(read["rows"]))
        except (KeyError, TypeError, ValueError) as e:
            raise WrittenOtherwise(
                f"the group has committed {text!r}, which is no mark of a write: {e!r}; "
                "transactional.id.prefix must be this query's own"
            ) from None
