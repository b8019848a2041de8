"""Turn event files into metrics, tables and figures."""
