"""Set up a machine: find what is missing, and install it.

``read_facts`` reads the machine and changes nothing, ``decide`` turns facts into what has to be
done (pure), ``install`` does it.
"""
