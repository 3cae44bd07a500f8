"""Learners' CUDA C++: compiled here, run simulated in a process of its own, or on a GPU."""
