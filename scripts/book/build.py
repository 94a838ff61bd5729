"""Builds the book from docs/SUMMARY.md, and checks what came out."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import check
import pages

ROOT = Path(__file__).resolve().parents[2]


def stage(folder):
    """Lays out the pages of the book and the files that they link to, each where it is in the repository."""
    source = folder / "pages"
    source.mkdir()
    shutil.copy(ROOT / "docs/book.toml", folder / "book.toml")
    listed = pages.listed(ROOT)
    for path in listed:
        copy(path, source)
        for link in pages.links((ROOT / path).read_text()):
            target = pages.resolve(path, link)
            if target and target not in listed and (ROOT / target).is_file() and not target.endswith(".md"):
                copy(target, source)
    summary = pages.summary(ROOT)
    (source / "SUMMARY.md").write_text(summary)
    return len(listed)


def copy(path, source):
    target = source / path
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / path, target)


def main():
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "book"
    mdbook = Path(sys.executable).parent / "mdbook"
    with tempfile.TemporaryDirectory(prefix="solehold-book-") as folder:
        count = stage(Path(folder))
        made = subprocess.run([mdbook, "build", folder, "--dest-dir", target], capture_output=True, text=True)
    said = made.stdout + made.stderr
    # mdBook goes on after what it only warns about.
    if made.returncode != 0 or "WARN" in said or "ERROR" in said:
        sys.exit(f"mdbook build failed:\n{said}")
    problems = check.problems(target)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(f"the book has {len(problems)} problems")
    print(f"{count} pages: {target / 'index.html'}")


if __name__ == "__main__":
    main()
