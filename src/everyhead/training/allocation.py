"""Large temporaries stay in the process instead of being mapped and page-faulted anew each time.

glibc hands every block above a threshold back to the kernel when it is freed; in a training step
that is every activation. mallopt(3) raises the thresholds for this process only.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_KEEP = 1 << 30  # bytes at the top of the heap that are kept


def keep_large_blocks() -> bool:
    """Ask glibc to keep freed memory; False where there is no glibc (the step is only slower)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wishes = ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _KEEP))
    return all(mallopt(name, value) == 1 for name, value in wishes)
