"""Checks of arguments and files: one sentence with the value, the bound and the fix."""
