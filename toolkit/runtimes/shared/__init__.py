"""What runtimes share. A module here is no runtime."""
