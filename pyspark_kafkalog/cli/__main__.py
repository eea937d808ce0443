"""``python -m pyspark_kafkalog.cli`` is ``kafkalog``."""

from pyspark_kafkalog.cli.app import main

main()
