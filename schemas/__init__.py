"""The file kinds that pass between the tools: records, readers, writers, errors."""
