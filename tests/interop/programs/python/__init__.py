"""Programs of the clients that are Python packages, one module each, to be run with `python -m`."""
