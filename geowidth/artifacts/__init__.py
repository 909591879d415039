"""The nouns of the chain, one file each with `read` and `write`: clouds, work profile, schedule, calibration."""
