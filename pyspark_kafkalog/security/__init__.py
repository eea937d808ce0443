"""What both sides of a secure connection need: JAAS, SCRAM's arithmetic, key stores. Opens no connection."""
