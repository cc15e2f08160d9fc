"""One suite of what users do with the client, run the same way against muster and Apache Kafka."""
