"""Find what a script imports before it runs: its own modules, and those that its Python must have.

Files are read and parsed, never executed. ``scan`` reads one module, ``evaluate`` computes the
expressions that decide where modules are looked for, ``search`` finds modules in directories, and
``walk`` follows the imports from the script on.
"""
