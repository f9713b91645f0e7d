"""Where everyhead keeps what it fetched.

$XDG_CACHE_HOME/everyhead            where it is set, else
~/.cache/everyhead                   Linux
~/Library/Caches/everyhead           macOS
%LOCALAPPDATA%\\everyhead\\Cache       Windows
"""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The table at the top of this file."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(chosen):  # a relative one is to be ignored, says the XDG specification
        return Path(chosen) / "everyhead"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "everyhead" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "everyhead"
    return Path.home() / ".cache" / "everyhead"
