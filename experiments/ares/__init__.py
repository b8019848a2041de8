"""The comparison of Ares (TACO 2025) with other schedulers, on published workloads."""
