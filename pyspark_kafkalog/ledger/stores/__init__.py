"""Stores for ledgers and the files of loads: directories, HDFS, object stores. No Spark."""
