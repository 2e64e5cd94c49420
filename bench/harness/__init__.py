"""What the benchmarks and the demo share: container runtimes, memory as the host sees it, HTTP latency."""
