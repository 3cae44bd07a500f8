"""The painter of a timeline in a browser."""
