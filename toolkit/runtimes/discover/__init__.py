"""Find out what ranks will run in: an image, an environment of Python, an engine."""
