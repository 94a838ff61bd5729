"""The gate's judgement by the script of cases that every client is tested with."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

from solehold_client.fence import Fence, Key, Mark, Record, Rules

CASES = Path(__file__).resolve().parents[2] / "cases" / "gate.json"


def scene(name: str) -> Key:
    """A resource of the script: `lobby`, or `lobby#2` for a slot of it."""
    key, _, slot = name.partition("#")
    return "scene", key, int(slot or 0)


class Case:
    def __init__(self, rules: dict[str, Any]) -> None:
        self.rules = Rules(**rules)
        self.fence = Fence(self.rules)
        self.disk: list[Record] = []

    def take(self, step: dict[str, Any]) -> tuple[Any, Any]:
        """Takes a step; gives what came of it, and what should."""
        do, fence = step["do"], self.fence
        key = scene(step.get("key", ""))
        if do == "snapshot":
            followed = fence.snapshot_begins(step["epoch"])
            if followed:
                for name, (token, session) in step["marks"].items():
                    fence.learn(scene(name), Mark(token, session))
                fence.snapshot_ends(step["revision"], step["asked"])
            return followed, step["followed"]
        if do == "head":
            return fence.head_was(step["epoch"], step["revision"], step["asked"]), step["followed"]
        if do == "judge":
            return str(fence.judge(key, step["token"], step["session"], step["at"])), step["verdict"]
        if do == "ask":
            answer = None if step["answer"] is None else Mark(*step["answer"])
            at = step["at"]
            verdict = fence.conclude(key, step["token"], step["session"], answer, step["epoch"], at, at)
            return "not followed" if verdict is None else str(verdict), step["verdict"]
        if do == "hidden":
            at = step["at"]
            verdict = fence.conclude(key, step["token"], step["session"], None, None, at, at, hidden=True)
            return str(verdict), step["verdict"]
        self.tell(do, key, step)
        return None, None

    def tell(self, do: str, key: Key, step: dict[str, Any]) -> None:
        fence = self.fence
        if do == "learn":
            fence.granted(key, Mark(step["token"], step["session"]))
        elif do == "told":
            fence.told_up_to(step["revision"])
        elif do == "deleted":
            fence.deleted(key)
        elif do == "away":
            fence.store_is_away(step["until"])
        elif do == "denied":
            fence.store_denies()
        elif do == "save":
            records, number = fence.unsaved()
            self.disk += records
            fence.saved_up_to(number)
        elif do == "restart":
            self.fence = Fence(self.rules)
            for record in self.disk:
                self.fence.restore(record)
        else:
            raise AssertionError(f"no case knows {do!r}")


class Cases(unittest.TestCase):
    def test_every_verdict_is_as_the_script_says(self) -> None:
        cases = json.loads(CASES.read_text())
        self.assertGreater(len(cases), 10)
        for case in cases:
            run = Case(case["rules"])
            for number, step in enumerate(case["steps"], 1):
                with self.subTest(case=case["name"], step=number, do=step):
                    came, expected = run.take(step)
                    self.assertEqual(came, expected)
