"""muster beside its peers, the same load on each in turn: `python -m tests.bench.peers` (docs/PEERS.md)."""
