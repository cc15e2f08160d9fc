"""What brokers say to each other: the markers of transactions, and the questions of partition leaders."""
