"""The examples of the README run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from .support.server import Solehold

PACKAGE = Path(__file__).resolve().parents[1]


class Readme(unittest.TestCase):
    def test_its_examples_run(self) -> None:
        with_asyncio, without = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)
        server = Solehold()
        self.addCleanup(server.stop)
        env = {**os.environ, "PYTHONPATH": str(PACKAGE / "src"), "SOLEHOLD_SERVER": server.url}

        def run(example: str) -> str:
            ran = subprocess.run(
                [sys.executable, "-W", "error", "-c", example], env=env, capture_output=True, text=True, timeout=60
            )
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            return ran.stdout

        for frames in ("123", "456"):
            told = run(with_asyncio)
            self.assertEqual(re.findall(r"frame (\d) with token \d+", told), list(frames))
            self.assertTrue(told.endswith("tracked\nthe lock is ours: True\n"), told)
        told = run(without)
        self.assertEqual(re.findall(r"page (\d) with token \d+", told), ["1", "2", "3"])
        self.assertTrue(told.endswith("the lock is ours: True\n"), told)

    def test_it_names_the_wheel_that_is_built(self) -> None:
        (version,) = re.findall(r'^version = "(.*)"$', (PACKAGE / "pyproject.toml").read_text(), re.MULTILINE)
        self.assertIn(f"pip install dist/solehold_client-{version}-py3-none-any.whl", (PACKAGE / "README.md").read_text())
