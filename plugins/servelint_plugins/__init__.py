"""Built-in plugins: hardware, models, workloads, policies and engines, by the hooks that third parties have."""
