"""Consumer groups of the next generation of the protocol (KIP-848)."""
