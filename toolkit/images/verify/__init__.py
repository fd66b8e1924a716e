"""Verify images: what can be said of an image with evidence, from outside."""
