"""`Consumer`, its fetches, and its membership in a group."""
