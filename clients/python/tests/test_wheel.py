"""The wheel: built as its README says, installed into a fresh virtual environment, and used against a real server.

pip builds it with what `pyproject.toml` names, which it fetches from its index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

from .support.server import Solehold

PACKAGE = Path(__file__).resolve().parents[1]
# What a user runs first, with the installed package alone.
CHECK = """
import importlib.metadata, pathlib, sys
import solehold_client, solehold_client.sync
folder = pathlib.Path(solehold_client.__file__).parent
assert folder.is_relative_to(sys.prefix), folder
assert (folder / "py.typed").is_file()
print("installed", importlib.metadata.version("solehold-client"), importlib.metadata.requires("solehold-client"))
"""


class Wheel(unittest.TestCase):
    def test_it_is_built_installed_and_used(self) -> None:
        kept = tempfile.TemporaryDirectory(prefix="solehold-wheel-")
        self.addCleanup(kept.cleanup)
        folder = Path(kept.name)
        # Of a copy, since a build leaves its traces beside the source.
        source = shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
        self.run_in(folder, sys.executable, "-m", "venv", "fresh")
        python = str(folder / "fresh/bin/python")
        self.run_in(folder, python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", str(source))
        (wheel,) = (folder / "dist").iterdir()
        self.assertRegex(wheel.name, r"^solehold_client-[0-9.]+-py3-none-any\.whl$")
        names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("solehold_client-")}
        modules = {f"solehold_client/{path.name}" for path in (PACKAGE / "src/solehold_client").iterdir() if path.is_file()}
        self.assertEqual(names, modules, "the package, and nothing else")

        self.run_in(folder, python, "-m", "pip", "install", "--quiet", "--no-index", str(wheel))
        self.assertRegex(self.run_in(folder, python, "-I", "-c", CHECK), r"^installed [0-9.]+ None\n$")
        server = Solehold()
        self.addCleanup(server.stop)
        for example in re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL):
            self.run_in(folder, python, "-I", "-W", "error", "-c", example, SOLEHOLD_SERVER=server.url)

    def run_in(self, folder: Path, *command: str, **env: str) -> str:
        ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        ran = subprocess.run(command, cwd=folder, env={**ours, **env}, capture_output=True, text=True, timeout=600)
        self.assertEqual(ran.returncode, 0, f"{' '.join(command)}:\n{ran.stdout}{ran.stderr}")
        return ran.stdout
