"""The command line of the connector, ``kafkalog``: one module for each group of commands."""

from pyspark_kafkalog.cli.app import main

__all__ = ["main"]
