"""What runs work: one interface, a real GPU and a simulated one behind it."""
