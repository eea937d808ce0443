"""``load()``, ``read_load()``, and the targets of a load: files, lake tables, databases, dead letters."""
