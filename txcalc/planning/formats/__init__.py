"""Formats of weights: what names mean, what a checkpoint says of itself, llama.cpp's mixtures; to the bit."""
