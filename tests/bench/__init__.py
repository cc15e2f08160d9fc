"""Benchmarks: scripts that print ratios against a peer measured in the same run. Nothing here is asserted."""
