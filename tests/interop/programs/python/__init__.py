"""Programs of the clients that are Python packages, a module each, to be run with `python -m`."""
