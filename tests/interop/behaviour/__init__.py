"""One suite of what users do with the client, run against muster and against Apache Kafka alike."""
