"""One module a trace format, with what its columns mean; shared readers of measurements beside them."""
