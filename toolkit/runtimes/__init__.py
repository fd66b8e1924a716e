"""What a rank runs inside: one module per runtime. Pure: they say how a command enters the environment, the script does it."""
