"""The command line: a module for each command, which parses, calls and prints."""
