"""What a training, a measurement, a calibration or a whole run will take on this machine, before any of it is done."""

from geowidth.plan.estimation import Estimate, estimate

__all__ = ["Estimate", "estimate"]
