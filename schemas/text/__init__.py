"""Text for people: what fits a terminal, tables, times, words that messages share."""
