"""How fast it is: ratios within one run."""

import pathlib
import re
import resource
import sys


def peak_megabytes() -> float:
    """Returns the most memory that this process has held so far."""
    status = pathlib.Path("/proc/self/status")  # On Linux `ru_maxrss` begins with what the parent process had held.
    peak = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    if peak:
        return int(peak[1]) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
