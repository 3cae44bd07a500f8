"""The simulated GPU: a discrete-event engine behind the interface of devices."""
