"""Programs of the checkout that are not in the wheel."""
