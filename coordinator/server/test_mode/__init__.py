"""What test mode does to a broker on purpose: faults, moved shards, moved time."""
