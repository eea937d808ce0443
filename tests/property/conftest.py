"""Hypothesis on machines that are busy with other things: an example that takes long is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("kafkalog", deadline=None)
settings.load_profile("kafkalog")
