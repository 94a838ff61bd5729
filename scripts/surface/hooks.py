"""What schemathesis cannot know of this surface, and what it finds out about every answer.

A schema cannot say everything. Cases that are meant to be good but break a rule that no schema can state are mended or
left out here; all that is wrong on purpose is sent as it is.
"""

import atexit
import collections
import json
import os

import schemathesis

import stage
import world

# Texts are bounded in bytes, and schemas count characters.
BYTES_MAX = (255, 1_024, 4_096, 8_192)
WAIT_MS_MAX = 20
OWN_KEY = world.own_key_id()

_counts = collections.defaultdict(collections.Counter)


@atexit.register
def _write_counts():
    with open(os.environ["SURFACE_COUNTS"], "w") as file:
        json.dump(_counts, file)


def is_meant_to_be_good(case):
    return case.meta is not None and case.meta.generation.mode.is_positive


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def is_longer_than_it_seems(text):
    size = len(text.encode("utf-8", "surrogatepass"))
    return any(len(text) <= most < size for most in BYTES_MAX)


def is_blank(body):
    """A body of nothing but spaces counts as none."""
    raw = getattr(body, "data", body)
    return isinstance(raw, (bytes, str)) and not raw.strip()


@schemathesis.hook
def filter_case(context, case):
    if not is_meant_to_be_good(case):
        return not is_blank(case.body)
    parts = (stage.path_names(case), case.query, case.body)
    if any(is_longer_than_it_seems(text) for part in parts for text in texts(part)):
        return False
    # The name of a site and that of a zone share the bytes of one name.
    return not stage.is_zone_too_long(case)


def whole(value):
    """Whole numbers are written without a fraction; to a schema 7.0 is one, too."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value


@schemathesis.hook
def before_call(context, case, kwargs):
    # The check goes on with its own key, whatever happens to others.
    if case.path_parameters.get("id") == OWN_KEY:
        case.path_parameters.update(world.key())
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
        if WAIT_MS_MAX < case.body["wait_ms"] <= 30_000:
            case.body["wait_ms"] = WAIT_MS_MAX
    if is_meant_to_be_good(case):
        if isinstance(case.body, (dict, list)):
            case.body = whole(case.body)
        # A cursor is one that the server gave; it does not take any other.
        for name in ("cursor", "from"):
            (case.query or {}).pop(name, None)
        stage.mend(case)
        _counts[case.operation.label]["good"] += 1
        if _counts[case.operation.label]["good"] % 2 == 0:
            stage.prepare(case)


@schemathesis.hook
def after_call(context, case, response):
    counts = _counts[case.operation.label]
    counts["all"] += 1
    if is_meant_to_be_good(case) and 200 <= response.status_code < 300:
        counts["done"] += 1
    stage.undo(case)


@schemathesis.serializer("application/jsonl")
def lines(context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@schemathesis.check
def json_ends_with_a_newline(context, response, case):
    kind = response.headers.get("content-type", [""])[0]
    if "json" in kind and response.content:
        assert response.content.endswith(b"\n"), "a JSON answer does not end with a newline"


@schemathesis.check
def failures_are_told_in_full(context, response, case):
    if response.status_code < 400:
        return
    failure = json.loads(response.content)
    assert failure["status"] == response.status_code, "the status of the problem is not that of the answer"
    assert failure["type"] == "urn:solehold:problem:" + failure["code"], "the type does not end with the code"
    assert failure["request_id"] == response.headers["x-request-id"][0], "the request id is not that of the header"
    assert failure["detail"] and failure["title"], "the problem has no words"
