"""What benchmarks are made of: a figure and its file, and parts that have many figures of their own."""
