"""Work to launch: reusable handles that own no stream."""
