"""Sphinx's configuration. `make docs` builds the site in build/docs; this file is copied there."""

import os
from pathlib import Path
from typing import Any

from toolkit import __version__
from tools.docs.korean import SearchKorean
from tools.docs.translation import ENGLISH_ONLY

project = "slurm-container-toolkit"
version = release = __version__
language = os.environ.get("DOCS_LANGUAGE", "en")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
exclude_patterns = ["locale"]
myst_heading_anchors = 3
# Pages are searched and read offline: nothing is taken from another host.
html_theme = "furo"
html_title = f"slurm-container-toolkit {version}"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/languages.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
# The two languages are two builds: English at the top, Korean in ko/.
html_context = {
    "other_language": "../" if language == "ko" else "ko/",
    "english_only": ENGLISH_ONLY,
}

locale_dirs = ["locale"]
gettext_compact = False
gettext_location = False
gettext_uuid = False
# A dash stays a dash: -- in a command must not become another character.
smartquotes = False
highlight_language = "text"
napoleon_google_docstring = True
autodoc_typehints = "description"


def setup(app: Any) -> None:
    """Search Korean words with any particle after them."""
    app.add_search_language(SearchKorean)
