"""Workshops: pack, rehearse, join and follow a course whose participants run the same exercises."""
