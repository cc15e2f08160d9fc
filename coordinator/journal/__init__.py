"""What happened in groups: the entries, their schema, and why. Leaves that any reader may import."""
