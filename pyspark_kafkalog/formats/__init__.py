"""Bytes to records and back: the message generations, their checksums and codecs. Pure."""
