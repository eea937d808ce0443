"""The connector's command line ``kafkalog``, with one module per group of commands."""

from pyspark_kafkalog.cli.app import main

__all__ = ["main"]
