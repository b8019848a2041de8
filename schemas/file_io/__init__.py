"""How files are read, checked and written, whatever their kind."""
