"""How the tests' JVMs compile: a session that lives for seconds never earns back what the optimising
compiler costs it.

Measured: starting and running twenty small queries took 29 CPU seconds of a JVM, with these flags 15.
"""

from __future__ import annotations

import os

JVM_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def hurry_jvms() -> None:
    """Give `JVM_FLAGS` to each Spark driver that is started from here on, by whatever process of ours.

    Spark's launcher reads them from the environment, so that notebooks and commands have them too; what the
    user has there already is left.
    """
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM_FLAGS)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", JVM_FLAGS)
