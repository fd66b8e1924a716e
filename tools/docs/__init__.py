"""The documentation site: its reference pages, its translations, and the commands in its pages."""
