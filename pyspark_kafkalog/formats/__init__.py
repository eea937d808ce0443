"""Message formats of all three generations: bytes to records and back. Pure: no I/O, no clock.

Timestamps are milliseconds since the epoch, positions are bytes in the buffer given, keys and values None
where they are null. The functions here are *thread-safe*; classes say otherwise. All of them raise the same
errors, which their docstrings do not repeat:

* `CorruptMessage`: a checksum, length, count or offset is wrong, or the bytes are cut short.
* `MessageTooLarge`: the data decompresses to more than ``max_bytes``; memory is bounded by that limit.
* `UnsupportedCompression`: the format does not have the codec, or the codec's library is not installed.
* `InvalidRecord` (encoders): a record, or one of its numbers, does not fit the format.
"""
