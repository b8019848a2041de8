"""One attempt of one job: its plans, commands and processes, from their start to what they leave."""
