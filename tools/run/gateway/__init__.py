"""How several accounts of one machine ask one run, which root started with ``pliant run --shared``."""
