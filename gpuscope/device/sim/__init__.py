"""A simulated GPU: a discrete-event engine, a cost model, lazy values."""
