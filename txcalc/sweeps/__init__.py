"""Grids of sizes: sweeps, their Parquet files, and worker processes."""
