"""The cupti source: what every library of this process did on the GPU, to the nanosecond."""
