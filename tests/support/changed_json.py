"""JSON files with some values changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")
