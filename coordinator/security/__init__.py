"""Who a client is and what it may do: mechanisms, credentials, ACLs. Nothing here uses a socket, a store or a
task; `server` brings them together."""
