"""The rules of lint. Each works on a ``LintCase``, and yields a result for each fault."""
