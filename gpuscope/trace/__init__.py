"""What was seen: immutable tables that open without a device."""
