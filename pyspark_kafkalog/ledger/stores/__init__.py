"""Where ledgers and the files of loads lie: directories, object stores. No Spark."""
