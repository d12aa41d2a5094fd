"""Mixers, one file each, named after the description's table."""
