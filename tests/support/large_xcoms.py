"""A class that keeps large XComs in files, as one of a provider keeps them in an object storage."""

import os
from pathlib import Path
from typing import Any

from asynsched import BaseXCom

LARGE = 500
PREFIX = "kept in "


class LargeXComs(BaseXCom):
    """Keeps texts of at least LARGE characters in the folder of the environment variable MARKS."""

    @staticmethod
    def serialize_value(value: Any, *, task_id: str = "", **place: Any) -> Any:
        if isinstance(value, str) and len(value) >= LARGE:
            file = Path(os.environ["MARKS"]) / f"xcom of {task_id}"
            file.write_text(value)
            value = f"{PREFIX}{file}"
        return BaseXCom.serialize_value(value)

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        value = BaseXCom.deserialize_value(result)
        is_kept = isinstance(value, str) and value.startswith(PREFIX)
        return Path(value.removeprefix(PREFIX)).read_text() if is_kept else value
