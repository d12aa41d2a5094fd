"""How each figure is known, and the theorems that a model inherits by its structure."""
