"""The stages of benchmarks.device, one file a subject; each stage is a function of a session.Session."""

UNUSABLE = 2  # exit code of a worker that finds no GPU
DEVICE_LOST = 3  # of one that can no longer use it
