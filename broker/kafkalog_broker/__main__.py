"""``python -m kafkalog_broker``: see `kafkalog_broker.cli`."""

from __future__ import annotations

import sys

from kafkalog_broker.cli import main

if __name__ == "__main__":
    sys.exit(main())
