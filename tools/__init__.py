"""The tools, one package each; see docs/ for who may import whom."""
