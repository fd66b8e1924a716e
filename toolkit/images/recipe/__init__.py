"""Recipes and the definitions rendered from them. Pure, but for reading shipped files."""
