"""The Python API: call functions on the nodes of a cluster."""
