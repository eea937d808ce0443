"""Today's wire for clients: connections, discovery of brokers and leaders, fetching, offsets, groups, admin.

Times are milliseconds, sizes bytes; ``deadline`` arguments bound a whole call, retries included. All calls
raise, in addition to what they document: `ConnectionLost` if a broker cannot be reached, or gives no answer,
in time; `InvalidRequest` or `FrameTooLarge` if a response is not valid Kafka; `UnsupportedVersion` if the
broker does not have the API; `ServerError` for an error code without a class of its own.
"""
