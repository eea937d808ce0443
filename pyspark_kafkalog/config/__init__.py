"""Configurations: definitions of properties, checked (`InvalidConfig`) and read from files."""
