"""Results → text. Pure functions: what they get is finished, what they return is a string or a rich renderable."""
