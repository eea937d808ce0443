"""Watching a registry: the children of a node, and what stands in each of them."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_kafkalog.zookeeper.session import Session, Watch


class RegistryWatch:
    """*Not thread-safe: lives on its session's thread, but for `cancel`.* A node's children and their values.

    ``changed`` is called on that thread when a child comes, goes or holds something else; also now and then
    when nothing has changed. A child that went and came back before anybody looked is among the same names
    as before: it is its value that tells, of a broker its address and its time.
    """

    def __init__(
        self, session: Session, parent: str, child: Callable[[str], str], changed: Callable[[], object]
    ) -> None:
        """``child`` makes the node to look at of one of the names below ``parent``."""
        self._session = session
        self._child = child
        self._changed = changed
        self._below: dict[str, Watch] = {}
        self._children = session.watch_children(parent, self._found)

    def cancel(self) -> None:
        """Call back no more."""
        self._children.cancel()
        for watch in list(self._below.values()):
            watch.cancel()

    def _found(self, names: list[str]) -> None:
        for name in self._below.keys() - set(names):
            self._below.pop(name).cancel()
        for name in set(names) - self._below.keys():
            self._below[name] = self._session.watch_node(self._child(name), lambda _data: self._changed())
        self._changed()
