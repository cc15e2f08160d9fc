"""Messages between the brokers of a cluster: transaction markers, and the questions of partition leaders.
They go through the store, which all brokers reach: advertised addresses are for clients, and need not be
reachable from here."""
