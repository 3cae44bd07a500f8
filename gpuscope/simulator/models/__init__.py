"""How long work takes on a simulated GPU."""
