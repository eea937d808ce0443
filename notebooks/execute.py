"""Runs notebooks from top to bottom, each in a fresh kernel of this interpreter.

``make notebooks`` keeps what they print and draw, for readers of the repository. The tests run them the same
way, and keep the result elsewhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).resolve().parent
CELL_SECONDS = 300


def execute(path: Path) -> NotebookNode:
    """The notebook with the outputs of this run; the file stays as it is.

    It works in a temporary directory, and its kernel keeps no history and reads no one's settings.

    Raises:
        CellExecutionError: a cell failed; the text has the cell and its traceback.
        CellTimeoutError: a cell took longer than `CELL_SECONDS`.
    """
    notebook = nbformat.read(path, as_version=4)
    with _directory() as work:
        settings = work / ".jupyter"
        settings.mkdir()
        client = NotebookClient(
            notebook,
            # Without directories to look in, the kernel is this interpreter's own, whatever is installed.
            km=AsyncKernelManager(
                kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
                transport="ipc",
                connection_file=str(settings / "kernel.json"),
            ),
            timeout=CELL_SECONDS,
            coalesce_streams=True,
            resources={"metadata": {"path": str(work)}},
            # What Java writes to the process's standard error is no output of a cell.
            extra_arguments=["--IPKernelApp.capture_fd_output=False"],
        )
        client.execute(env=_environment(settings))
    return notebook


def clean(notebook: NotebookNode) -> NotebookNode:
    """Without metadata that differs from one machine or run to the next; changes and returns it."""
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = NotebookNode()
    return notebook


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="notebook-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _environment(settings: Path) -> dict[str, str]:
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "IPYTHONDIR": str(settings),
        "JUPYTER_RUNTIME_DIR": str(settings),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Execute notebooks and write them with their outputs.")
    parser.add_argument("names", nargs="*", help="such as 01_quickstart.ipynb (default: all)")
    parser.add_argument("--to", type=Path, default=NOTEBOOKS, help="directory (default: where they are)")
    options = parser.parse_args()
    for name in options.names or sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")):
        print(f"{name} ...", flush=True)
        nbformat.write(clean(execute(NOTEBOOKS / name)), options.to / name)


if __name__ == "__main__":
    main()
