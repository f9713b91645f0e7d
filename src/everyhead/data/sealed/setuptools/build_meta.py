"""A build backend that builds nothing: name and version come from the environment."""

import os
from pathlib import Path
from typing import Any


class _Sealed:
    def get_requires_for_build_wheel(self, config_settings: Any = None) -> list[str]:
        return []

    def prepare_metadata_for_build_wheel(self, folder: str, config_settings: Any = None) -> str:
        name, _, version = os.environ["EVERYHEAD_REQUIREMENT"].partition("==")
        made = Path(folder) / f"{name}-{version}.dist-info"
        made.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (made / "METADATA").write_bytes(text.encode("utf-8"))
        return made.name


__legacy__ = _Sealed()  # the name that pip asks for where an archive has no pyproject.toml
