"""OpenLineage events of a load: which topics went into which tables, and how it ended.

They are sent if the package openlineage-python is installed and configured: by variables whose names begin
with ``OPENLINEAGE``, or by a file ``openlineage.yml``. A topic is ``kafka://host:port`` and its name, a table
its store and its path.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark_kafkalog.config.definition import masked
from pyspark_kafkalog.ledger.commit import Commit, LoadOutput

log = logging.getLogger(__name__)

_NAMESPACE = "OPENLINEAGE_NAMESPACE"  # OpenLineage's own name for the namespace of jobs
_DEFAULT_NAMESPACE = "kafkalog"
_PRODUCER = "urn:pyspark-kafkalog"
_FILES = ("openlineage.yml", "~/.openlineage/openlineage.yml")


class LoadEvents:
    """*Not thread-safe.* The events of one run. A failure to send them is logged, and no load fails of it."""

    def __init__(self, name: str, run: str, servers: str, topics: Iterable[str]) -> None:
        self._name = name
        self._run = str(uuid.UUID(run))
        self._inputs = [(f"kafka://{servers.partition(',')[0]}", topic) for topic in sorted(set(topics))]
        self._client = _client()

    def begun(self) -> None:
        self._send("START")

    def completed(self, commit: Commit) -> None:
        self._send("COMPLETE", commit.outputs)
        self._close()

    def failed(self, error: BaseException) -> None:
        self._send("FAIL", error=error)
        self._close()

    def kept(self) -> None:
        """The load ended without a commit, as its program wanted."""
        self._send("ABORT")
        self._close()

    def _send(
        self, state: str, outputs: Iterable[LoadOutput] = (), *, error: BaseException | None = None
    ) -> None:
        if self._client is None:
            return
        try:
            self._client.emit(self._event(state, outputs, error))
        except Exception as e:  # whatever the transport raises
            log.warning("the OpenLineage event %s of load %s was not sent: %s", state, self._name, e)

    def _event(self, state: str, outputs: Iterable[LoadOutput], error: BaseException | None) -> Any:
        from openlineage.client.event_v2 import InputDataset, Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run

        facets: dict[str, Any] = {}
        if error is not None:
            text = masked(f"{type(error).__name__}: {error}")
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(text, "python")
        return RunEvent(
            eventType=RunState[state],
            eventTime=datetime.now(timezone.utc).isoformat(),
            run=Run(self._run, facets),
            job=Job(os.environ.get(_NAMESPACE, _DEFAULT_NAMESPACE), self._name),
            inputs=[InputDataset(*names) for names in self._inputs],
            outputs=[_dataset(output) for output in outputs],
            producer=_PRODUCER,
        )

    def _close(self) -> None:
        if self._client is None:
            return
        try:
            self._client.close()  # some transports send late
        except Exception as e:
            log.warning("OpenLineage events of load %s may be missing: %s", self._name, e)


def _client() -> Any:
    """OpenLineage's client; None where it is not installed, or nobody said where events go."""
    named = [name for name in os.environ if name.startswith("OPENLINEAGE") and name != _NAMESPACE]
    if not named and not any(map(_is_there, _FILES)):
        return None
    try:
        from openlineage.client import OpenLineageClient
    except ImportError:
        log.warning("OpenLineage is configured, but not installed: pip install 'pyspark-kafkalog[lineage]'")
        return None
    try:
        return OpenLineageClient()
    except Exception as e:  # whatever is wrong with its configuration
        log.warning("no OpenLineage events are sent: %s", masked(str(e)))
        return None


def _is_there(file: str) -> bool:
    try:
        return Path(file).expanduser().exists()
    except (OSError, RuntimeError):  # a directory that one may not read, or no home
        return False


def _dataset(output: LoadOutput) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset

    size = sum(file.bytes for file in output.files) if output.files else None
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=output.rows, size=size, fileCount=len(output.files) or None
    )
    return OutputDataset(*dataset_name(output), outputFacets={"outputStatistics": statistics})


def dataset_name(output: LoadOutput) -> tuple[str, str]:
    """Namespace and name of where an output is."""
    parts = urlsplit(output.path)
    table = output.evidence.get("table")
    path = parts.path.strip("/")
    if parts.scheme in ("", "file"):
        is_path = output.path.startswith(("/", "file:"))
        return ("file", f"/{path}") if is_path else (_DEFAULT_NAMESPACE, output.path)
    if table is None:
        return f"{parts.scheme}://{parts.netloc}", path
    if parts.netloc:
        return f"{parts.scheme}://{parts.netloc}", f"{path}.{table}"
    return f"{parts.scheme}:///{path}", str(table)
