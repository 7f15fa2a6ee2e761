"""Every speed and memory claim against its baseline: `python -m benchmarks` or `make bench`."""
