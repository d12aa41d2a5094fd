"""Every command as a function that returns a typed answer. The command line only calls these and prints."""
