"""Configurations: definitions of properties, and reading them from files. Values are checked:
`InvalidConfig`.
"""
