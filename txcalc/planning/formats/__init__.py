"""Formats of weights, to the bit: by name, from a checkpoint's config, and llama.cpp's mixtures."""
