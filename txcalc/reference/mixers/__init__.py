"""The modules of `parts.mixers`, by the same names."""
