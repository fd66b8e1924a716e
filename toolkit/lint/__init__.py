"""Find faults in sbatch scripts that people have already, and fix those that are mechanical."""
