"""Perfetto's protobuf traces, with typed events of GPUs; written only."""
