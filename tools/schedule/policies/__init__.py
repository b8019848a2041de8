"""One module per policy; the registry is the only place that lists them."""
