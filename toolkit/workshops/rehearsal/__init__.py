"""Rehearse a workshop: many participants at once, as real users of a local cluster."""
