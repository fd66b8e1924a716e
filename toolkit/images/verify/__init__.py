"""Verify images from outside: every verdict rests on evidence."""
