"""Cluster administration: `Admin`, and the functions behind it. Each function takes a Cluster and a deadline;
the method of `Admin` has the same name. Each concern has its own module, so that a command imports only what
it uses. The public names are in `muster.client`.
"""
