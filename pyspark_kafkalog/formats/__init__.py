"""Message formats of all three generations: bytes to records and back. Pure: no I/O, no clock.

Timestamps are milliseconds since the epoch, positions are bytes in the given buffer, null keys and values are
None. Functions are *thread-safe*; classes say otherwise. All raise the same errors:

* `CorruptMessage`: a checksum, length, count or offset is wrong, or the bytes are cut short.
* `MessageTooLarge`: the data decompresses to more than ``max_bytes``, which also bounds memory.
* `UnsupportedCompression`: the format lacks the codec, or the codec's library is not installed.
* `InvalidRecord` (encoders): a record does not fit the format.
"""
