"""Adds to gpuscope by entry points what gpuscope itself does not have."""
