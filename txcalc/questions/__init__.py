"""Every command as a function: what it found, as a typed result. The command line only calls these and prints."""
