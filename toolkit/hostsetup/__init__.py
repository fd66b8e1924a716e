"""Getting a machine ready: what is missing is looked for, decided upon, announced, installed and tried.

``look`` gathers facts and changes nothing, ``decide`` turns facts into actions (pure), ``install``
carries them out.
"""
