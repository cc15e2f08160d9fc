"""Leaves that every part may import: clocks, deadlines, the log, endpoints, durations, the operating system.
Nothing here imports the rest of the coordinator."""
