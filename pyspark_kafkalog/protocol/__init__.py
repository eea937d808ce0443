"""Requests and responses of the wires: today's (`exchange`, `api`) and 0.7's (`v07`). Pure, thread-safe.

Sizes are bytes, times milliseconds. Encoders and decoders raise `InvalidRequest` if bytes do not follow the
schema or a value does not fit it, and `UnsupportedVersion` if the tables do not have the API or its version.
"""
