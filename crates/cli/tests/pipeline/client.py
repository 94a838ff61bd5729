"""A camera pipeline's client through a whole life, with nothing but the standard library.

Usage: client.py URL [KEY]

It sends what the pipeline's manager sends, names its tenant where that does, and asks of the answers what that asks of
them: success is 200 with a JSON object, anything else a failure, and a document that lacks a required field is one, too.
"""

import json
import sys
import urllib.error
import urllib.request
from datetime import datetime

TENANT, SITE, RUNNER = "tenant-01", "site-A", "runner-1"
AT_SITE = f"/api/v1/tenants/{TENANT}/sites/{SITE}"
CAMERAS = ["cam-1", "cam-2", "cam-3"]
ZONE = {"zone_id": 7, "polygon": [[0, 0], [10, 0], [10, 10]]}


def is_text(value):
    return isinstance(value, str)


def is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_time(value):
    return is_text(value) and datetime.fromisoformat(value.replace("Z", "+00:00")).tzinfo is not None


def is_port(value):
    return is_number(value) and 1 <= value <= 65535


RUNNER_FIELDS = {
    **dict.fromkeys(["runner_id", "tenant_id", "site_id", "deployment_group", "deployment_version", "host"], is_text),
    **dict.fromkeys(["registered_at", "last_heartbeat"], is_time),
    **dict.fromkeys(["port", "metrics_port"], is_port),
    "status": lambda value: value in ("active", "inactive", "draining", "maintenance"),
    "capacity": lambda value: is_number(value) and 1 <= value <= 100,
    "current_load": is_number,
    "capabilities": lambda value: isinstance(value, list),
    "metrics": lambda value: isinstance(value, dict),
}
LEASE_FIELDS = {
    **dict.fromkeys(["lease_id", "camera_uuid", "runner_id", "shard_id", "tenant_id", "site_id"], is_text),
    **dict.fromkeys(["acquired_at", "expires_at", "last_heartbeat"], is_time),
    **dict.fromkeys(["config_version", "zone_version"], is_text),
    "status": lambda value: value in ("active", "expired", "released", "revoked", "pending"),
    "processing_stats": lambda value: isinstance(value, dict),
}
CAMERA_FIELDS = {
    **dict.fromkeys(["camera_uuid", "rtsp_url", "tenant_id", "site_id"], is_text),
    "zones": lambda value: all(is_whole(zone, ZONE_FIELDS) for zone in value),
}
ZONE_FIELDS = {
    "zone_id": lambda value: is_number(value) and value >= 1,
    "name": is_text,
    "kind": lambda value: value in ("include", "exclude"),
    "priority": is_number,
    "polygon": lambda value: len(value) >= 3,
}
VERSION_FIELDS = {"config_version": is_text, "zone_version": is_text, "last_updated": is_time}


def is_whole(document, fields):
    for field, is_right in fields.items():
        assert field in document and is_right(document[field]), f"{field} of {document}"
    return True


class Client:
    def __init__(self, url, key):
        self.url = url
        # It shows a key always, an empty one if it was given none.
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(self, method, path, body=None):
        """The status and the JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def get(self, path):
        return self.call("GET", path)

    def call(self, method, path, body=None):
        status, answer = self.ask(method, path, body)
        assert status == 200 and isinstance(answer, dict), f"{method} {path}: {status} {answer}"
        return answer

    def register(self, capacity=3):
        runner = {
            "runner_id": RUNNER,
            "tenant_id": TENANT,
            "site_id": SITE,
            "deployment_group": "production",
            "deployment_version": "v1.0.0",
            "host": "localhost",
            "port": 8080,
            "metrics_port": 9108,
            "capacity": capacity,
            "capabilities": ["rtsp", "motion_detection", "zone_filtering"],
        }
        answer = self.call("POST", "/api/v1/runners/register/", runner)
        assert is_whole(answer, RUNNER_FIELDS) and {**answer, **runner} == answer, answer
        return answer

    def try_to_acquire(self, camera):
        wanted = {
            "camera_uuid": camera,
            "runner_id": RUNNER,
            "shard_id": "shard-1",
            "tenant_id": TENANT,
            "site_id": SITE,
            "ttl_seconds": 60,
            "config_version": "v1",
            "zone_version": "v1",
        }
        return self.ask("POST", "/api/v1/leases/acquire/", wanted)

    def acquire(self, camera):
        status, answer = self.try_to_acquire(camera)
        assert status == 200 and answer["success"] is True, answer
        assert is_whole(answer["lease"], LEASE_FIELDS) and answer["lease"]["status"] == "active"
        return answer["lease"]

    def version(self):
        answer = self.get("/api/v1/config/version")
        assert is_whole(answer, VERSION_FIELDS)
        return answer


def configures(client):
    """An operator declares cameras and a zone, and the manager reads them."""
    for camera in CAMERAS:
        answer = client.call("PUT", f"{AT_SITE}/cameras/{camera}/", {"status": "online"})
        assert is_whole(answer, CAMERA_FIELDS)
    before = client.version()
    assert is_whole(client.call("POST", f"{AT_SITE}/zones/", ZONE), ZONE_FIELDS)
    after = client.version()
    assert before["config_version"] == after["config_version"] and before["zone_version"] != after["zone_version"]
    assert before["last_updated"] <= after["last_updated"]
    site = client.get(f"{AT_SITE}/config/version")
    assert is_whole(site, VERSION_FIELDS)
    changed = client.call("PUT", f"{AT_SITE}/zones/7/", {**ZONE, "kind": "exclude", "min_score": 0.5})
    assert is_whole(changed, ZONE_FIELDS)
    assert [zone["kind"] for zone in client.get(f"{AT_SITE}/zones/")["zones"]] == ["exclude"]
    camera = client.get("/api/v1/cameras/cam-1/")
    assert is_whole(camera, CAMERA_FIELDS) and [zone["zone_id"] for zone in camera["zones"]] == [7]
    assert is_whole(client.call("PUT", "/api/v1/cameras/cam-1/", {**camera, "min_score": 0.6}), CAMERA_FIELDS)
    for status, count in [("online", 3), ("error", 0)]:
        cameras = client.get(f"{AT_SITE}/cameras/?status={status}")["cameras"]
        assert len(cameras) == count and all(is_whole(camera, CAMERA_FIELDS) for camera in cameras)
    assert client.ask("POST", f"{AT_SITE}/zones/", {**ZONE, "zone_id": 0})[0] == 400


def works(client):
    """A manager registers, takes cameras up to its capacity, and keeps them."""
    assert client.get("/health/")
    client.register(capacity=2)
    assert client.get("/api/v1/cameras/available/")["cameras"] == CAMERAS
    leases = [client.acquire(camera) for camera in CAMERAS[:2]]
    status, refused = client.try_to_acquire(CAMERAS[2])
    assert status == 409 and refused["success"] is False and refused["code"] == "at_capacity", refused
    assert client.get("/api/v1/cameras/available/")["cameras"] == CAMERAS[2:]
    for frames, lease in enumerate(leases, start=1):
        path = f"/api/v1/leases/{lease['lease_id']}"
        stats = {"processed_frames": frames}
        renewed = client.call("PUT", f"{path}/renew/", {"processing_stats": stats})
        assert is_whole(renewed, LEASE_FIELDS) and renewed["processing_stats"] == stats
        beat = client.call("POST", f"{path}/heartbeat/", {"processing_stats": stats, "camera_status": None})
        assert beat["success"] is True and is_time(beat["next_heartbeat_due"])
        held = client.get(f"/api/v1/leases/camera/{lease['camera_uuid']}/")
        assert held["status"] == "active" and held["lease"]["processing_stats"] == stats
    of_runner = client.get(f"/api/v1/leases/runner/{RUNNER}/")["leases"]
    assert [lease["camera_uuid"] for lease in of_runner] == CAMERAS[:2]
    client.call("PUT", f"/api/v1/runners/{RUNNER}/heartbeat/", {"current_load": 2, "metrics": {"total_workers": 1}})
    runner = client.get(f"/api/v1/runners/{RUNNER}/")
    assert is_whole(runner, RUNNER_FIELDS) and runner["current_load"] == 2 and runner["metrics"]["total_workers"] == 1
    assert client.get(f"/api/v1/runners/{RUNNER}/assignments")
    return leases


def restarts(client, former):
    """It crashes and comes back at once: its cameras are free for it, and the former leases are over."""
    assert client.register()["assigned_cameras"] == []
    leases = [client.acquire(camera) for camera in CAMERAS]
    for old, new in zip(former, leases):
        assert new["token"] > old["token"]
        status, answer = client.ask("PUT", f"/api/v1/leases/{old['lease_id']}/renew/", {})
        assert status == 404 and answer["ended"]["status"] == "revoked", answer
    return leases


def leaves(client, leases):
    for lease in leases[:2]:
        assert client.call("DELETE", f"/api/v1/leases/{lease['lease_id']}/release/")["success"] is True
    gone = client.call("DELETE", f"/api/v1/runners/{RUNNER}/")
    assert gone["success"] is True and gone["leases_released"] == 1, gone
    assert client.ask("GET", f"/api/v1/runners/{RUNNER}/")[0] == 404
    assert client.call("DELETE", f"{AT_SITE}/zones/7/") == {"success": True}
    for camera in CAMERAS:
        assert client.call("DELETE", f"{AT_SITE}/cameras/{camera}/") == {"success": True}
    assert client.get("/api/v1/cameras/available/")["cameras"] == []


def main():
    client = Client(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
    configures(client)
    leaves(client, restarts(client, works(client)))


if __name__ == "__main__":
    main()
