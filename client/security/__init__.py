"""How a client authenticates itself and verifies brokers: TLS and SASL."""
