"""Mirrors: topics of one or several clusters copied into another."""
