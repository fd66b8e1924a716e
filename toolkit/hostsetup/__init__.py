"""Set up a machine: find what is missing, decide, announce, install and test.

``read_facts`` reads the machine and changes nothing, ``decide`` turns facts into actions (pure),
``install`` carries them out.
"""
