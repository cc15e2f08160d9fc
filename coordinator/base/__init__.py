"""Leaf modules that any part may import: clocks, deadlines, the log, endpoints, the operating system. Nothing
here imports the rest of the coordinator."""
