"""Where processes run: one interface of six operations, one module per kind of cluster."""
