"""Pictures of a benchmark's page, as files beside it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedretina.report.render import write_page
from fedretina.report.svg import Chart


class Pictures:
    """Writes pictures and gives the lines that show them on the page.

    Args:
        page: The page's file.
        folder: Folder of the pictures.
        prefix: Of their names.
    """

    def __init__(self, page: Path, folder: Path, prefix: str) -> None:
        self._page, self._folder, self._prefix = page, folder, prefix

    def show(self, what: str, chart: Chart | None) -> list[str]:
        """Write a picture; no lines where there is none.

        Raises:
            StateError: The file cannot be written.
        """
        if chart is None:
            return []
        path = self._folder / f"{self._prefix}_{what}.svg"
        # Alone, the picture has no page whose style sheet gives it a typeface, nor a white ground.
        alone = re.sub(r"<svg ", '<svg font-family="sans-serif" style="background:#fff" ', chart.svg, count=1)
        write_page(path, alone + "\n")
        link = Path(os.path.relpath(path, self._page.parent)).as_posix()
        return [f"![{chart.alt.replace('[', '(').replace(']', ')')}]({link})", ""]
