"""Runs compose files with podman, kills containers, and checks by the examples' own evidence that the work went on:
nothing twice, nothing lost, nothing stale. scripts/e2e-containers calls it with a folder and the names of examples."""

import os
import sys
from pathlib import Path

import gateway
import orchestrator
import pipeline
import reconciler
import tracker
from project import Failed

EXAMPLES = {
    "reconciler": reconciler,
    "tracker": tracker,
    "pipeline": pipeline,
    "gateway": gateway,
    "orchestrator": orchestrator,
}


def main():
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        try:
            EXAMPLES[name].run(folder)
        except Failed as error:
            sys.exit(f"{name} failed: {error}")
        print(f"{name}: passed", flush=True)


os.environ.setdefault("PODMAN_COMPOSE_WARNING_LOGS", "false")
main()
