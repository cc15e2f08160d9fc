"""Producer, Consumer and Admin against muster behind a proxy that harms what passes through it."""
