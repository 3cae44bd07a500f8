"""The real GPU: the only place that imports cuda.core, cuda.bindings, CuPy and nvmath."""
