"""The file system behind a seam, its open files, the data directories and their locks."""
