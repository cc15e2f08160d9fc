"""What administrators ask of a cluster: `Admin`, and the functions behind it.

A function takes a Cluster and a deadline, and is a method of `Admin` under the same name. Each concern has
a module of its own, so that a command imports what it uses and no more; the public names are in
`muster.client`.
"""
