"""The pages of the book, and the links on a page."""

import posixpath
import re

LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(text):
    """The links to files of the repository, outside blocks of code."""
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        if not inside:
            for link in LINK.findall(line):
                if "://" not in link and not link.startswith("#"):
                    yield link.split("#")[0]


def resolve(path, link):
    """The path in the repository that a link on the page at `path` leads to; none, if it is outside."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return None if target.startswith("..") else target


def summary(root):
    """The table of contents with paths from the root of the repository."""
    text = (root / "docs/SUMMARY.md").read_text()
    return LINK.sub(lambda link: f"]({resolve('docs/SUMMARY.md', link.group(1))})", text)


def listed(root):
    """The pages in the order of the book."""
    return LINK.findall(summary(root))
