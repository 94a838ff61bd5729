"""Style is an ordinary test, with the reason beside each rule."""

from __future__ import annotations

import ast
import re
import sys
import unittest
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
SOURCES = sorted((PACKAGE / "src").rglob("*.py"))
TESTS = sorted((PACKAGE / "tests").rglob("*.py"))
LINES_MAX = 600
LINE_CHARS_MAX = 130


class Tidy(unittest.TestCase):
    def test_files_and_lines_are_short(self) -> None:
        """A file has one purpose, and a reader one evening."""
        for path in SOURCES + TESTS:
            lines = path.read_text().splitlines()
            self.assertLessEqual(len(lines), LINES_MAX, path)
            long = [number for number, line in enumerate(lines, 1) if len(line) > LINE_CHARS_MAX]
            self.assertEqual(long, [], path)

    def test_clocks_are_read_in_one_file(self) -> None:
        """Time is an argument, so that it can be simulated."""
        reads = re.compile(r"\btime\.(time|monotonic|clock_gettime|perf_counter)|datetime|loop\(\)\.time\(\)")
        for path in SOURCES:
            if path.name != "clock.py":
                self.assertIsNone(reads.search(path.read_text()), path)

    def test_nothing_but_the_standard_library_is_imported(self) -> None:
        for path in SOURCES:
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    names.append(node.module or "")
                for name in names:
                    self.assertIn(name.split(".")[0], sys.stdlib_module_names, path)

    def test_public_things_say_what_they_are(self) -> None:
        for path in SOURCES:
            tree = ast.parse(path.read_text())
            self.assertTrue(ast.get_docstring(tree), path)
            owners: list[ast.Module | ast.ClassDef] = [tree]
            owners += [node for node in tree.body if isinstance(node, ast.ClassDef)]
            for owner in owners:
                for node in owner.body:
                    if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                        continue
                    hidden = node.name.startswith("_") or (isinstance(owner, ast.ClassDef) and owner.name.startswith("_"))
                    overload = path.name == "clock.py" and node.name == "now"
                    inherited = path.name == "http.py" and node.name in ("send", "stream", "close")
                    if not (hidden or overload or inherited):
                        self.assertTrue(ast.get_docstring(node), f"{path}: {node.name}")

    def test_functions_fit_on_a_screen(self) -> None:
        for path in SOURCES:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self.assertLessEqual((node.end_lineno or 0) - node.lineno, 50, f"{path}: {node.name}")
