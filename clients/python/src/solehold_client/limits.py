"""Every bound of this client, in one place and by name (rule 25)."""

from __future__ import annotations

from typing import Final

# What the server takes.
NAME_BYTES_MAX: Final = 255
TTL_SECONDS_MIN: Final = 1.0
TTL_SECONDS_MAX: Final = 24 * 60 * 60.0
# Longest that one request waits in line; to wait longer, ask again with the same request id.
WAIT_SECONDS_MAX: Final = 30.0
# Most sessions whose news one request asks for.
NEWS_SESSIONS_MAX: Final = 1_000
# Most holders at once that one resource is shared by, and most resources that one request acquires together.
SLOTS_MAX: Final = 1_000
ACQUIRED_TOGETHER_MAX: Final = 100
# Most kinds that one gate is for.
GATE_KINDS_MAX: Final = 32
# A wait that the server should have ended by now is ended by the client.
WAIT_LEEWAY_SECONDS: Final = 1.0
# A watch is never silent for long: the server sends a comment every 10 s.
SILENCE_SECONDS_MAX: Final = 30.0
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024

# The trust window (rule 4).
MARGIN_SHARE: Final = 0.02
MARGIN_SECONDS_MIN: Final = 0.1
# Taken off where the server does not say how far the store's clock may run ahead.
SLACK_SECONDS_UNKNOWN: Final = 0.5
MARGIN_SHARE_MAX: Final = 0.5

# asyncio's timers stand still while the machine sleeps, so nothing waits for longer than this without a look at the
# clock.
STEP_SECONDS_MAX: Final = 0.1

# Answers.
HEAD_BYTES_MAX: Final = 64 * 1024
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
INTERIM_ANSWERS_MAX: Final = 8
PIECE_BYTES_MAX: Final = 64 * 1024

# Connections of one client: short requests, and those that wait in line. Each has its own share, so that waiting for
# a lock never prevents its release; a caller that finds no slot asks again. The number of idle connections is bounded.
REQUESTS_AT_ONCE_MAX: Final = 64
WAITERS_AT_ONCE_MAX: Final = 512
IDLE_CONNECTIONS_MAX: Final = 16
SERVERS_MAX: Final = 64
CONNECT_SECONDS_MAX: Final = 3.0

# Requests whose outcome a session still has to find out.
UNSETTLED_MAX: Final = 1024
# How long a cancelled acquire waits until its request id is spent, before that goes on in the background.
SPEND_SECONDS_MAX: Final = 1.0
# How long `async with` waits for the release of a guard, before that goes on in the background, and how long closing a
# session waits for an answer, before its ttl does the rest.
LEAVE_SECONDS_MAX: Final = 2.0
