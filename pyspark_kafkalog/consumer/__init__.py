"""`Consumer`, its fetches, and its membership in a group; and the former place of two classic modules."""
