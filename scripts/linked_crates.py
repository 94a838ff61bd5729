"""Which crates are linked into the `solehold` binary, as cargo says it."""

import json
import os
import subprocess


def cargo(*args: str) -> str:
    cargo = os.environ.get("CARGO", "cargo")
    return subprocess.run([cargo, *args], check=True, capture_output=True, text=True).stdout


def linked(features: str) -> list[tuple[str, str]]:
    """Name and version of each crate, without those that only take part in the build."""
    selection = ["--package", "solehold", "--features", features, "--edges", "normal", "--prefix", "none"]
    lines = cargo("tree", "--locked", *selection, "--format", "{p}").splitlines()
    crates = set()
    for line in lines:
        words = line.removesuffix(" (*)").split()
        if "(proc-macro)" not in line and len(words) >= 2:
            crates.add((words[0], words[1].removeprefix("v")))
    return sorted(crates)


def metadata() -> dict:
    """Every package of the lock file, and what each depends on."""
    return json.loads(cargo("metadata", "--format-version", "1", "--locked"))
