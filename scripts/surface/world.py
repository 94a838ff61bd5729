"""What an operation needs to succeed: each is made for one call, by the same surface, and under a name of its own."""

import itertools
import json
import os
import urllib.parse
import urllib.request

URL = os.environ["SURFACE_URL"]
KEY = os.environ["SURFACE_KEY"]
# A job of the orchestrator whose jobs the server shows.
JOB = os.environ["SURFACE_JOB"]
_numbers = itertools.count(1)


def ask(method, path, body=None):
    """Asks the server and returns the answer, or raises if it is a refusal."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data=data, method=method)
    request.add_header("Authorization", f"Bearer {KEY}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
        is_json = "json" == answer.headers.get_content_subtype()
        return json.loads(text) if is_json else text.decode()


def fresh(prefix="staged"):
    return f"{prefix}-{next(_numbers)}"


def lock():
    name = fresh()
    return {"name": name}, ask("POST", f"/api/v1/locks/{name}", {"holder": "h", "ttl_seconds": 300})


def declared():
    kind, key = "job", fresh()
    ask("PUT", f"/api/v1/resources/{kind}/{key}", {})
    return {"kind": kind, "key": key}


def held():
    path = declared()
    lease = f"/api/v1/resources/{path['kind']}/{path['key']}/lease"
    return path, ask("POST", lease, {"holder": "h", "ttl_seconds": 300})


def handed_over():
    path, grant = held()
    state = {"token": grant["token"], "sequence": 0, "document": {"done": 1}}
    ask("PUT", f"/api/v1/resources/{path['kind']}/{path['key']}/state", state)
    return path, grant


def offered():
    path, _ = held()
    offer = {"session_id": session()["id"], "ttl_seconds": 300}
    ask("POST", f"/api/v1/resources/{path['kind']}/{path['key']}/handover", offer)
    return path


def scene():
    path = {"id": fresh()}
    ask("PUT", f"/api/v1/scenes/{path['id']}", {})
    return path


def held_scene():
    path = scene()
    return path, ask("POST", f"/api/v1/scenes/{path['id']}/lease", {"holder_id": "h", "ttl_seconds": 300})


def camera():
    uuid = fresh("cam")
    ask("PUT", f"/api/v1/cameras/{uuid}", {})
    return {"camera_uuid": uuid}


def held_camera():
    # By a runner of its own: one that was registered may be at its capacity.
    path = camera()
    return path, ask("POST", "/api/v1/leases/acquire", {**path, "runner_id": fresh("runner"), "ttl_seconds": 300})


def session():
    return {"id": ask("POST", "/api/v1/sessions", {"holder": fresh(), "ttl_seconds": 300})["session_id"]}


def runner():
    name = fresh()
    return {"id": name}, ask("POST", "/api/v1/runners/register", {"runner_id": name})


def running():
    path, (name, opened) = declared(), runner()
    lease = f"/api/v1/resources/{path['kind']}/{path['key']}/lease"
    body = {"holder": name["id"], "session_id": opened["session_id"]}
    return path, name, ask("POST", lease, body)


def key():
    return {"id": ask("POST", "/api/v1/admin/keys", {"name": fresh(), "role": "reader"})["id"]}


def own_key_id():
    return ask("GET", "/api/v1/admin/keys")["keys"][0]["id"]


def quote(text):
    return urllib.parse.quote(text, safe="")
