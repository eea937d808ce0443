"""Loads into tables of a database: rows and offsets in one transaction."""
