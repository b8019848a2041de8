"""A report as text, Markdown, CSV, JSON and HTML."""
