"""The network side of a broker: listener, connections, router and one handler per API."""
