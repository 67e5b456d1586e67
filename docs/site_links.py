"""MkDocs hook: adapt links and pictures, which the pages write as GitHub shows them, to the site.

The pages link to source files, which the site does not contain. ``repo_url`` of mkdocs.yml, set by the environment
variable ``BAKEOFF_REPO_URL``, is the address of the repository; without it such links become plain text. Pictures
follow the theme that the reader chose on the site, and MkDocs complains about a missing file.
"""

import os
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
_PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\s*</picture>'
)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:  # noqa: ANN401  (mkdocs' own types)
    """A page's text with pictures, links to folders and links to files outside docs/ replaced."""
    docs = Path(config.docs_dir)

    def replaced(link: re.Match[str]) -> str:
        text, target, fragment = link.groups()
        path = Path(os.path.normpath((docs / page.file.src_uri).parent / target))
        if not path.exists() or (path.is_relative_to(docs) and path.is_file()):
            return link[0]  # mkdocs copies it, or complains that it is missing
        if not config.repo_url:
            return text
        kind = "tree" if path.is_dir() else "blob"
        place = path.relative_to(docs.parent)
        return f"[{text}]({config.repo_url.rstrip('/')}/{kind}/main/{place}{fragment or ''})"

    images = r"![\g<alt>](\g<light>#only-light)\n![\g<alt>](\g<dark>#only-dark)"
    return _LINK.sub(replaced, _PICTURE.sub(images, markdown))
