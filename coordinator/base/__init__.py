"""Leaves that every part may import: clocks, deadlines, the log, endpoints, the operating system.
Nothing here imports the rest of the coordinator."""
