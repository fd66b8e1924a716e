"""Rules over a job before it is submitted: a module each."""
