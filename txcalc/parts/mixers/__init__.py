"""Mixers that are a file by themselves: each is known by its file's name, which its table has too."""
