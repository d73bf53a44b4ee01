"""The configuration of Sphinx. `make docs` builds the pages into `build/docs`, offline."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

project = "Millstream"
author = "The Millstream authors"
release = version = importlib.metadata.version("millstream")

extensions = ["myst_parser", "sphinx_copybutton", "scripts.docs.extension"]
exclude_patterns = ["conf.py"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# Reference pages have headings of level 3 below generated text.
suppress_warnings = ["myst.header"]

html_theme = "furo"
html_title = f"Millstream {release}"
html_copy_source = False
html_show_sourcelink = False
# Prompts and output are not copied.
copybutton_prompt_text = "$ "
