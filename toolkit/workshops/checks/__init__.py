"""Checks of a joined workshop: what keeps a participant from the first accuracy."""
