"""How fast it is: ratios within one run."""

import resource
import sys


def peak_megabytes() -> float:
    """Returns the most memory that this process has held so far."""
    unit = 1024**2 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
