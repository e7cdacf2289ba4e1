"""What demo, benchmarks and tests share."""
