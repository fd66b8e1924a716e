"""What developers measure; not part of the installed package."""
