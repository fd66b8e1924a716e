"""From what a user asks for to a plan."""
