"""What brokers of a cluster say to each other: the markers of transactions, and the questions of partition
leaders. It goes through the store, which all of them reach: their advertised addresses are for clients, and
need not be reachable from here."""
