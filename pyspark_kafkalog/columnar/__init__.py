"""Fetched bytes to Arrow record batches without a Python object per record."""
