"""Chrome's trace events, and PyTorch's profiler, which writes them."""
