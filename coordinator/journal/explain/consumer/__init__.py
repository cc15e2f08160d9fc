"""Consumer groups (KIP-848): how their rebalances differ from those of classic groups."""
