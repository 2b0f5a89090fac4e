"""Rules of latency and throughput objectives."""
