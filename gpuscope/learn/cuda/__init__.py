"""Learners' CUDA C++: compiled here, run in a process of its own against the simulated GPU."""
