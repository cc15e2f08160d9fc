"""The network side of a broker: listener, connections, sessions, and one declaration per API."""
