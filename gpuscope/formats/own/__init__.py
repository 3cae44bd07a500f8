"""Our own formats, and plain tables."""
