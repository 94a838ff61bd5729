"""The example of the README runs as it stands there."""

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
    def test_its_example_runs(self) -> None:
        (example,) = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL)
        server = Solehold()
        self.addCleanup(server.stop)
        env = {**os.environ, "PYTHONPATH": str(PACKAGE / "src"), "SOLEHOLD_SERVER": server.url}
        for frames in ("123", "456"):
            ran = subprocess.run(
                [sys.executable, "-W", "error", "-c", example], env=env, capture_output=True, text=True, timeout=60
            )
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            self.assertEqual(re.findall(r"frame (\d) with token \d+", ran.stdout), list(frames))
            self.assertTrue(ran.stdout.endswith("tracked\nthe lock is ours: True\n"), ran.stdout)
