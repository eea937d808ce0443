"""One file per API, registered by key and versions."""
