"""Mirrors: copy topics of one or several clusters to another."""
