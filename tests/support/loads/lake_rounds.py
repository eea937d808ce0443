"""A round of the loads' fault driver into a table of Delta or Iceberg, whose commit has rows and position.

What the ledger takes back, by a rewind or a discard, is in the table until it is rolled back, which is the
user's to do: a load is refused until then, and here the round does it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.support.loads.load_rounds import LoadRound
from tests.support.loads.loaded_table import check_table
from tests.support.loads.spark_driver import DRIVER_POINTS

TWICE = "its rows would be there twice"
WRITTEN_TWICE = "more than once"
_OF_OTHERS = ("files written", "before sql commit", "after sql commit")


@dataclass
class LakeRound(LoadRound):
    """A round whose output is a table of ``kind``, ``delta`` or ``iceberg``; the drivers have their JARs."""

    kind: str = ""
    table: str = field(init=False)

    driver_points: ClassVar = tuple(point for point in DRIVER_POINTS if point not in _OF_OTHERS)
    replays_read: ClassVar = False

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.topic.name.replace("-", "_")
        self.table = str(self.path) if self.kind == "delta" else f"ice.db.{name}"

    def order(self, on_pending: str = "replay") -> dict[str, Any]:
        return super().order(on_pending) | self._lake

    def look(self) -> None:
        """The table holds what is committed and, of the plan that is pending, all or nothing."""
        if any(commit.outputs for commit in self.ledger.lineage()):
            rows = check_table(self._read(self._lake), self.ledger, with_pending=True)
            self.note(f"seen: {rows} rows")

    def discarded(self) -> None:
        """A plan that is in the table is given up: refused until it is out of the table."""
        self.raised()
        given_up = self.ledger.pending()
        assert given_up is not None
        answer = self._load("discards", on_pending="discard")
        assert TWICE in answer["text"], answer
        self._roll_back()
        answer = self._must_succeed("after it was rolled back")
        assert answer["number"] == given_up.number + 1
        self.look()

    def rewound(self) -> None:
        """As `discarded`. To before the first load no table can be rolled back."""
        lineage = self.ledger.lineage()
        target = self.rng.choice([c.number for c in lineage if c.outputs][-3:])
        undone = any(c.outputs for c in lineage if c.number > target)
        commit = self.ledger.rewind(target, "a rewind")
        self.note(f"rewind to {target}: commit {commit.number}")
        answer = self._load("after the rewind")
        if not answer["ok"]:
            assert TWICE in answer["text"], answer
            self._roll_back()
            self._must_succeed("after it was rolled back")
        else:
            assert not undone
        self.look()

    def finish(self) -> None:
        super().finish()
        loads = [output.evidence["rows"] for c in self.ledger.lineage() for output in c.outputs]
        assert sum(map(int, loads)) == sum(self.topic.acknowledged)

    # ---- how they are done

    @property
    def _lake(self) -> dict[str, str]:
        return {"lake": self.kind, "table": self.table}

    def _load(self, what: str, **how: Any) -> dict[str, Any]:
        """Where a dead driver's JVM still wrote, as with Iceberg it may, the table is rolled back first."""
        answer = super()._load(what, **how)
        if WRITTEN_TWICE in answer.get("text", ""):
            self._roll_back()
            answer = super()._load(f"{what}, after the table was rolled back", **how)
        return answer

    def _roll_back(self) -> None:
        """Make the table what the newest load in effect made it."""
        newest = next(c for c in reversed(self.ledger.lineage()) if c.outputs)
        version = newest.outputs[0].evidence["version"]
        self.note(f"table rolled back to load {newest.number}, its version {version}")
        order = {"do": "roll back", "version": version, **self._lake}
        answer = self._ask(self.drivers.pick(self.rng), order)
        assert answer["ok"], answer
        self.struck["rolled back"] += 1
