"""Requests and responses of today's protocol (`exchange`, `api`) and of 0.7's (`v07`). Pure, thread-safe.

Sizes are bytes, times milliseconds. Encoders and decoders raise `InvalidRequest` for bytes or values that do
not fit the schema, and `UnsupportedVersion` for an unknown API or version.
"""
