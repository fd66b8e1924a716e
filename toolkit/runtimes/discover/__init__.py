"""Runtime discovery: the Pythons and the container engine of this machine, and what they hold."""
