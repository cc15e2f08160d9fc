"""Producer, Consumer and Admin against muster, behind a proxy that damages the traffic."""
