"""Recipes, and the definitions that they become. Pure, but for reading files that are shipped."""
