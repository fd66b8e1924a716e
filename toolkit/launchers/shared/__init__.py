"""What launchers share. A module here is no launcher."""
