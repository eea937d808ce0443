"""Client side of today's protocol: connections, brokers and leaders, fetching, offsets, groups, admin.

Times are milliseconds, sizes bytes; a ``deadline`` bounds a whole call with its retries. All calls may raise
`ConnectionLost` if a broker cannot be reached or does not respond in time, `InvalidRequest` or
`FrameTooLarge` for an invalid response, `UnsupportedVersion` if the broker lacks the API, and `ServerError`
for an error code without its own class.
"""
