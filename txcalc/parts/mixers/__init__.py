"""Mixers in a file of their own, which has the name of their table."""
