"""How a client proves who it is, and checks whom it talks to: TLS and SASL."""
