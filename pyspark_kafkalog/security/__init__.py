"""Shared by clients and brokers: TLS contexts, key stores, JAAS, SCRAM, ACLs. Opens no connection."""
