"""The renewer, the trust window and the lease sets, by themselves."""

from __future__ import annotations

import doctest
import random
import unittest

from solehold_client import Policy, backoff, check, history, sse, trust, wire
from solehold_client.backoff import Backoff, BackoffConfig
from solehold_client.history import History, OlderHistory
from solehold_client.holdings import Holdings
from solehold_client.renewer import FLIGHTS_MAX, Renewer, Send, Stop, Wait

TTL = 30.0


def renewer(policy: Policy = Policy.DEADLINE, *, sent: float = 100.0, seed: int = 1) -> Renewer:
    return Renewer(policy, ttl=TTL, sent=sent, ttl_left=TTL, slack=0.0, rng=random.Random(seed))


class Trust(unittest.TestCase):
    def test_the_examples_hold(self) -> None:
        for module in (trust, wire, backoff, check, history, sse):
            self.assertEqual(doctest.testmod(module).failed, 0)

    def test_the_margin_is_bounded_on_both_sides(self) -> None:
        for ttl in (1.0, 2.0, 5.0, 30.0, 3600.0, 86400.0):
            for slack in (0.0, 0.5, None):
                margin = trust.margin(ttl, slack)
                self.assertLessEqual(margin, ttl / 2)
                self.assertGreaterEqual(margin, min(0.1, ttl / 2))
        self.assertEqual(trust.margin(30.0, None), trust.margin(30.0, 0.5), "what is not known counts as the larger")

    def test_a_deadline_is_never_later_than_the_store_s_by_a_clock_that_drifts(self) -> None:
        rng = random.Random(4)
        for _ in range(5000):
            ttl, drift = rng.uniform(1, 3600), rng.uniform(0.99, 1.01)
            sent, under_way = rng.uniform(0, 1e6), rng.uniform(0, 2)
            # The store's deadline, told on a local clock that runs at `drift` of the store's.
            store_deadline = sent + (under_way + ttl) * drift
            self.assertLessEqual(trust.deadline(sent, ttl, ttl, 0.0), store_deadline)


class Renewing(unittest.TestCase):
    def test_heartbeats_go_out_at_a_third_of_the_ttl_or_a_little_before(self) -> None:
        starts = set()
        for seed in range(200):
            action = renewer(seed=seed).poll(100.0)
            assert isinstance(action, Wait)
            self.assertTrue(108.0 <= action.until <= 110.0, action)
            starts.add(action.until)
        self.assertGreater(len(starts), 150, "they spread")

    def test_an_answer_moves_the_deadline_from_before_its_request(self) -> None:
        machine = renewer()
        self.assertEqual(machine.deadline, 129.4)
        self.assertEqual(machine.poll(110.0), Send(1, timeout=machine.deadline - 110.0, beside=0), "all of the time left")
        self.assertEqual(machine.poll(111.0), Wait(110.0 + TTL / 9), "until another one is sent beside it")
        machine.answered(115.0, sent=110.0, ttl_left=TTL, slack=0.0)
        self.assertEqual(machine.deadline, 139.4)

    def test_news_are_followed_by_a_heartbeat_at_once(self) -> None:
        machine = renewer()
        machine.news(101.0)
        self.assertIsInstance(machine.poll(101.0), Send)
        machine.news(101.1)
        machine.answered(101.2, sent=101.0, ttl_left=TTL, slack=0.0)
        self.assertIsInstance(machine.poll(101.2), Send, "the first may have been answered before it happened")
        machine.answered(101.3, sent=101.2, ttl_left=TTL, slack=0.0)
        action = machine.poll(101.3)
        assert isinstance(action, Wait)
        self.assertGreaterEqual(action.until, 109.2, "and then at their time again")

    def test_a_deadline_never_moves_earlier(self) -> None:
        machine = renewer()
        machine.answered(101.0, sent=100.5, ttl_left=3.0, slack=None)
        self.assertEqual(machine.deadline, 129.4)

    def test_failures_are_tried_again_until_the_deadline_and_not_after(self) -> None:
        machine, now, sends = renewer(), 100.0, 0
        while not isinstance(action := machine.poll(now), Stop):
            if isinstance(action, Send):
                sends += 1
                machine.failed(action.flight, now, "no route")
            else:
                now = action.until
        self.assertEqual(now, 129.4)
        self.assertEqual(action.lost.why, "deadline")
        self.assertIn("no route", str(action.lost))
        self.assertTrue(8 <= sends <= 40, sends)

    def test_a_heartbeat_in_flight_does_not_hold_up_the_deadline(self) -> None:
        machine = renewer()
        self.assertIsInstance(machine.poll(110.0), Send)
        self.assertIsInstance(machine.poll(129.4), Stop)

    def test_lost_is_for_good(self) -> None:
        machine = renewer()
        machine.poll(110.0)
        # The answer was there in time for the store, but the work had to stop before it was read.
        machine.answered(129.5, sent=110.0, ttl_left=TTL, slack=0.0)
        self.assertFalse(machine.is_live(129.5))
        self.assertIsInstance(machine.poll(129.6), Stop)

    def test_immediate_stops_at_the_first_failure(self) -> None:
        machine = renewer(Policy.IMMEDIATE)
        sent = machine.poll(110.0)
        assert isinstance(sent, Send)
        self.assertEqual(machine.poll(119.0), Wait(129.4), "nothing is sent beside it")
        machine.failed(sent.flight, 110.2, "no route")
        action = machine.poll(110.2)
        assert isinstance(action, Stop)
        self.assertEqual(action.lost.why, "failed")

    def test_grace_works_on_while_the_authority_is_away(self) -> None:
        machine = renewer(Policy.grace(300))
        sent = machine.poll(110.0)
        assert isinstance(sent, Send)
        machine.failed(sent.flight, 110.2, "no route")
        self.assertTrue(machine.is_live(429.3))
        machine.answered(429.3, sent=429.2, ttl_left=TTL, slack=0.0)
        self.assertEqual(machine.ends_at, 429.2 + 29.4 + 300, "heard again, it starts anew")
        self.assertFalse(machine.is_live(machine.ends_at))

    def test_another_heartbeat_is_sent_beside_one_without_an_answer(self) -> None:
        machine, now, sends = renewer(), 110.0, []
        while not isinstance(action := machine.poll(now), Stop):
            if isinstance(action, Send):
                sends.append((now, action))
            else:
                now = action.until
        self.assertEqual([send.beside for _, send in sends], list(range(len(sends))))
        self.assertTrue(3 <= len(sends) <= FLIGHTS_MAX, sends)
        machine = renewer()
        first, second = machine.poll(110.0), machine.poll(115.0)
        assert isinstance(first, Send) and isinstance(second, Send)
        machine.answered(116.0, sent=115.0, ttl_left=TTL, slack=0.0)
        self.assertFalse(machine.failed(first.flight, 116.1, "no answer"), "a later one was answered")
        self.assertEqual(machine.deadline, 115.0 + 29.4)

    def test_slowness_alone_costs_no_session(self) -> None:
        rng = random.Random(7)
        for case in range(500):
            ttl = rng.uniform(1.0, 120.0)
            # Connecting, a handshake and the request may each take a tenth of the ttl.
            delay, slack = rng.uniform(0.0, ttl * 0.3), rng.choice([0.0, min(0.5, ttl / 20)])
            policy = rng.choice([Policy.IMMEDIATE, Policy.DEADLINE, Policy.grace(ttl)])
            machine = Renewer(policy, ttl=ttl, sent=0.0, ttl_left=ttl, slack=slack, rng=random.Random(case))
            now, answers, beats = 0.0, list[tuple[float, float, float]](), 0
            while now < 20 * ttl:
                while answers and answers[0][0] <= now:
                    arrives, sent, until = answers.pop(0)
                    self.assertLessEqual(arrives, until, "it is not given up")
                    machine.answered(now, sent=sent, ttl_left=ttl, slack=slack)
                action = machine.poll(now)
                self.assertNotIsInstance(action, Stop, f"case {case}: ttl {ttl}, delay {delay}, {policy}")
                if isinstance(action, Send):
                    beats += 1
                    answers.append((now + delay, now, now + action.timeout))
                elif isinstance(action, Wait):
                    now = min([action.until, *(arrives for arrives, _, _ in answers[:1])])
            self.assertLess(beats, 20 * (4 + 12), "and not by a flood of heartbeats")

    def test_a_refusal_stops_every_policy_at_once(self) -> None:
        for policy in (Policy.IMMEDIATE, Policy.DEADLINE, Policy.grace(300)):
            machine = renewer(policy)
            machine.poll(110.0)
            machine.refused("no_session: the session is over")
            action = machine.poll(110.0)
            assert isinstance(action, Stop)
            self.assertEqual(action.lost.why, "refused")

    def test_policies_are_checked(self) -> None:
        for seconds in (0.0, -1.0, float("nan"), float("inf")):
            with self.assertRaisesRegex(ValueError, "grace"):
                Policy.grace(seconds)


A, B = ("a", 10), ("b", 12)


class LeaseSets(unittest.TestCase):
    def test_a_set_says_nothing_about_a_newer_grant(self) -> None:
        holdings = Holdings()
        self.assertTrue(holdings.granted(A, (1, 10)))
        self.assertEqual(holdings.take((1, 8), frozenset()), [], "older than the grant")
        self.assertEqual(holdings.take((1, 10), frozenset({A})), [])
        self.assertTrue(holdings.granted(B, (1, 12)))
        self.assertEqual(holdings.take((1, 13), frozenset({B})), [A])
        self.assertEqual(holdings.take((1, 14), frozenset({B})), [], "told once")

    def test_an_older_set_is_not_applied_over_a_newer(self) -> None:
        holdings = Holdings()
        holdings.granted(A, (1, 10))
        holdings.take((1, 20), frozenset({A}))
        self.assertEqual(holdings.take((1, 15), frozenset()), [])

    def test_a_grant_that_arrives_after_its_end_is_not_held(self) -> None:
        holdings = Holdings()
        holdings.take((1, 20), frozenset())
        self.assertFalse(holdings.granted(A, (1, 10)))
        self.assertTrue(holdings.granted(("b", 21), (1, 21)))

    def test_what_was_let_go_is_not_missed(self) -> None:
        holdings = Holdings()
        holdings.granted(A, (1, 10))
        holdings.let_go(A)
        self.assertEqual(holdings.take((1, 11), frozenset()), [])

    def test_a_later_epoch_comes_after_any_revision_of_an_earlier_one(self) -> None:
        holdings = Holdings()
        holdings.granted(A, (1, 900))
        self.assertEqual(holdings.take((2, 5), frozenset()), [A])
        self.assertTrue(holdings.granted(B, (2, 12)))
        self.assertFalse(holdings.granted(A, (1, 901)))

    def test_a_lease_under_another_token_is_another_grant(self) -> None:
        holdings = Holdings()
        holdings.granted(A, (1, 10))
        self.assertEqual(holdings.take((2, 11), frozenset({("a", 2**32)})), [A])


class Histories(unittest.TestCase):
    def test_an_older_history_is_never_followed(self) -> None:
        history = History()
        self.assertEqual(history.follow(None), 0)
        self.assertEqual(history.follow(3), 3)
        self.assertEqual(history.follow(None), 3)
        with self.assertRaises(OlderHistory):
            history.follow(2)
        self.assertEqual(history.follow(4), 4)

    def test_a_cursor_is_kept_until_there_is_another(self) -> None:
        history = History()
        history.keep("a")
        history.keep(None)
        self.assertEqual(history.sealed_cursor, "a")
        history.keep("b")
        self.assertEqual(history.sealed_cursor, "b")


class Delays(unittest.TestCase):
    def test_they_double_to_the_cap_with_jitter(self) -> None:
        series = Backoff(BackoffConfig(first=0.1, cap=1.0), random.Random(1))
        for whole in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
            delay = series.delay()
            self.assertTrue(whole / 2 <= delay <= whole, (whole, delay))
        self.assertEqual(series.delay(least=5.0), 5.0)
        series.reset()
        self.assertLessEqual(series.delay(), 0.1)

    def test_nonsense_is_refused(self) -> None:
        for first, cap in ((0.0, 1.0), (2.0, 1.0), (float("nan"), 1.0)):
            with self.assertRaises(ValueError):
                BackoffConfig(first, cap)
