"""What a book must be: whole, and complete without a network."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a page loads by itself, as opposed to where it leads when somebody follows a link.
LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}
# The search must find these pages by these words.
SEARCHES = {"fencing token": "docs/protocol.html", "client certificate": "docs/security.html"}


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids = set()
        self.links = []
        self.loaded = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif (tag, name) in LOADED and value:
                self.loaded.append(value)
            elif tag == "a" and name == "href" and value:
                self.links.append(value)


def problems(folder):
    folder = Path(folder)
    read = {path: Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in read.items():
        name = path.relative_to(folder)
        found += [f"{name}: loads {url} from elsewhere" for url in page.loaded if is_elsewhere(url)]
        for url in page.links + page.loaded:
            why = None if is_elsewhere(url) else dead(url, path, page, read, folder)
            if why:
                found.append(f"{name}: {url}: {why}")
    for path in sorted(folder.rglob("*.css")):
        for url in re.findall(r"url\(['\"]?([^'\")]+)", path.read_text()) + re.findall(r"@import\s+(\S+)", path.read_text()):
            if is_elsewhere(url) and not url.startswith("data:"):
                found.append(f"{path.relative_to(folder)}: loads {url} from elsewhere")
    return found + search_problems(folder)


def is_elsewhere(url):
    parts = urlsplit(url)
    return bool(parts.scheme or parts.netloc)


def dead(url, path, page, read, folder):
    """Why a link leads nowhere."""
    parts = urlsplit(url)
    target = path
    if parts.path:
        target = (path.parent / unquote(parts.path)).resolve()
        # The page for missing pages is served from anywhere, and counts from the root.
        if path.name == "404.html":
            return None
        if not target.is_file():
            return "there is no such file in the book"
        if folder.resolve() not in target.parents:
            return "it is outside of the book"
    anchor = unquote(parts.fragment)
    there = read.get(target) or read.get(path if target == path.resolve() else target)
    if anchor and target.suffix == ".html" and there is not None and anchor not in there.ids:
        return "there is no such heading"
    return None


def search_problems(folder):
    """Searches the index as a browser does, from the files alone."""
    node = shutil.which("node")
    if node is None:
        return ["the search was not tried: there is no node"]
    library = next(folder.glob("elasticlunr*.js"), None)
    index = next(folder.glob("searchindex*.js"), None)
    if library is None or index is None:
        return ["the book has no index to search"]
    program = (
        "global.window = {search: {}}; const fs = require('fs');"
        "const elasticlunr = require(process.argv[1]);"
        "(0, eval)(fs.readFileSync(process.argv[2], 'utf8'));"
        "const found = window.search; const index = elasticlunr.Index.load(found.index);"
        "const options = {bool: 'AND', expand: true, fields: found.search_options.fields};"
        "const answers = JSON.parse(process.argv[3]).map(words => "
        "index.search(words, options).slice(0, 20).map(hit => found.doc_urls[hit.ref]));"
        "console.log(JSON.stringify(answers));"
    )
    words = list(SEARCHES)
    command = [node, "-e", program, str(library.resolve()), str(index.resolve()), json.dumps(words)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if ran.returncode != 0:
        return [f"the search failed: {ran.stderr.strip()[-500:]}"]
    found = dict(zip(words, json.loads(ran.stdout)))
    return [
        f"searching for {words!r} does not find {page}: {found[words]}"
        for words, page in SEARCHES.items()
        if not any(url.startswith(page) for url in found[words])
    ]
