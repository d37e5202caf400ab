"""Takes out of converted Markdown what is there for the eye only."""

import re

# Image, and what it says in its place; pictures inside of documents have no other address.
_IMAGE = re.compile(r'!\[([^\]\n]*)\]\((?:[^()\s]|\([^()\s]*\))*(?: "[^"\n]*")?\)')
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n){2,}")
_MARK = re.compile(r"^( {0,3})(#{1,6}(?=\s|$)|[-=]{3,}[^\S\n]*$|`{3,}|~{3,})", re.MULTILINE)


def tidy(markdown: str) -> str:
    """Put images' descriptions in their place, and take out white space that says nothing."""
    markdown = markdown.replace("\r\n", "\n").replace("\r", "\n")
    markdown = _IMAGE.sub(r"\1", markdown)
    lines = (line.rstrip() for line in markdown.split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip() + "\n"


def escape(text: str) -> str:
    """Make of plain text such Markdown that none of its lines is a heading or a fence by chance."""
    return _MARK.sub(r"\1\\\2", text)
