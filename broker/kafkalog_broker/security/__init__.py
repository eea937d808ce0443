"""Authentication of clients, and authorization of what they do."""
