"""Serving: the memory of a deployment, the time of a step, and both under a load."""
