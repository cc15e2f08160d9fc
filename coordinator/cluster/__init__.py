"""Who holds what: leases and placement (pure), membership of one node, and the topology clients are given."""
