"""The rules of lint, one module each. A module has a ``RULE`` and a ``check``; its line in ``toolkit.lint.RULES`` makes it known."""
