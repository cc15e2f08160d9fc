"""What outlives a process: coordinator records, leases, topics, nodes; and the bytes of topic data."""
