"""Puts on stage what an operation needs, so that a good call can succeed."""

from urllib.parse import unquote

import world

RETIRE = "POST /api/v1/admin/retire"
RESTORED = "POST /api/v1/admin/restored"
HAND_OVER = "POST /api/v1/resources/{kind}/{key}/handover"


def path_names(case):
    """The names in the path, which a case has as they stand there."""
    return {name: unquote(str(value)) for name, value in (case.path_parameters or {}).items()}


def is_zone_too_long(case):
    if "/zones" not in case.operation.path:
        return False
    body = case.body if isinstance(case.body, dict) else {}
    path = path_names(case)
    parts = (path.get("site", ""), str(path.get("zone_id", body.get("zone_id", ""))))
    return sum(len(part.replace("%", "%25").replace("/", "%2F").encode()) for part in parts) > 254


def mend(case):
    """Makes a good case keep the rules that no schema can state."""
    body = case.body if isinstance(case.body, dict) else {}
    path = path_names(case)
    # What path and body both say must agree.
    for in_path, in_body in (("camera_uuid", "camera_uuid"), ("zone_id", "zone_id"), ("site", "site_id")):
        if in_path in path and in_body in body:
            body[in_body] = path[in_path]
    if path.get("zone_id", "").isascii() and path.get("zone_id", "").isdigit() and "zone_id" in body:
        number = int(path["zone_id"])
        body["zone_id"] = number if str(number) == path["zone_id"] else path["zone_id"]
    # No two zones of a camera have the same id.
    if isinstance(body.get("zones"), list) and all(isinstance(zone, dict) for zone in body["zones"]):
        body["zones"] = list({str(zone["zone_id"]): zone for zone in body["zones"]}.values())
    # Tokens go up by a bounded step.
    if isinstance(body.get("above"), int):
        body["above"] %= 2**39
    # The next holder is named in one way, and only a hand-over by force has a reason.
    if case.operation.label == HAND_OVER:
        if body.get("session_id") is None:
            body["to"] = body.get("to") or "h"
        else:
            body.pop("to", None)
        if not body.get("force"):
            body.pop("fenced", None)
            body.pop("reason", None)
    if case.operation.label == "POST /api/v1/admin/import":
        case.body = world.ask("GET", "/api/v1/admin/export")


def undo(case):
    """A store that was retired or restored is taken up again."""
    if case.operation.label in (RETIRE, RESTORED):
        world.ask("POST", "/api/v1/admin/restored", {"holders_stopped": True})


def prepare(case):
    """Makes what the operation of a good case needs, and lets the case name it."""
    prepared = STAGES.get(case.operation.label)
    if prepared is None:
        return
    (case.query or {}).pop("tenant", None)
    prepared(case, case.body if isinstance(case.body, dict) else {})


def prove(body, grant, holder="holder", token="token"):
    """Names the lease by its token, and whatever else the body names by what is true."""
    for name in ("session_id", "kind", "key"):
        body.pop(name, None)
    for name, value in (("lease_id", grant.get("lease_id")), (holder, "h")):
        if body.get(name) is not None:
            body[name] = value
    body[token] = grant[token]


def with_lease(make, **names):
    def prepared(case, body):
        path, grant = make()
        case.path_parameters.update(path)
        prove(body, grant, **names)
        if isinstance(body.get("sequence"), int):
            body["sequence"] = max(body["sequence"], 1)

    return prepared


def with_path(make):
    def prepared(case, body):
        case.path_parameters.update(make())

    return prepared


def lease_of_camera(case, body):
    _, grant = world.held_camera()
    case.path_parameters["lease_id"] = grant["lease_id"]
    if body.get("token") is not None:
        body["token"] = grant["token"]
    if body.get("runner_id") is not None:
        body["runner_id"] = grant["runner_id"]


def free_camera(case, body):
    body.update(world.camera(), runner_id=world.fresh("runner"))
    for name in ("session_id", "site_id", "tenant_id"):
        body.pop(name, None)


def free_scene(case, body):
    case.path_parameters.update(world.scene())
    body.pop("session_id", None)


def new_camera(case, body):
    case.path_parameters.update({"tenant": "default", "site": "s"})
    body.update({"camera_uuid": world.fresh("cam"), "tenant_id": "default", "site_id": "s"})


def registered(case, body):
    path, session = world.runner()
    case.path_parameters.update(path)
    if body.get("session_id") is not None:
        body["session_id"] = session["session_id"]


def offer(case, body):
    path, _ = world.held()
    case.path_parameters.update(path)
    body["session_id"] = world.session()["id"]
    for name in ("to", "budget"):
        body.pop(name, None)


def failing(case, body):
    path, runner, lease = world.running()
    case.path_parameters.update(path)
    body["runner_id"] = runner["id"]
    body["token"] = lease["token"]
    for proof in ("session_id", "lease_id"):
        body.pop(proof, None)


def any_node(case, body):
    world.session()
    (case.query or {}).pop("group", None)


STAGES = {
    "DELETE /api/v1/leases/{lease_id}/release": lease_of_camera,
    "POST /api/v1/leases/{lease_id}/heartbeat": lease_of_camera,
    "POST /api/v1/leases/{lease_id}/revoke": lease_of_camera,
    "PUT /api/v1/leases/{lease_id}/renew": lease_of_camera,
    "GET /api/v1/leases/{lease_id}": lease_of_camera,
    "GET /api/v1/leases/{lease_id}/history": lease_of_camera,
    "GET /api/v1/leases/camera/{camera_uuid}": with_path(lambda: world.held_camera()[0]),
    "POST /api/v1/leases/acquire": free_camera,
    "POST /api/v1/tenants/{tenant}/sites/{site}/cameras": new_camera,
    "GET /api/v1/locks/{name}": with_path(lambda: world.lock()[0]),
    "DELETE /api/v1/locks/{name}": with_lease(world.lock),
    "POST /api/v1/locks/{name}/renew": with_lease(world.lock),
    "GET /api/v1/resources/{kind}/{key}/lease": with_path(lambda: world.held()[0]),
    "GET /api/v1/resources/{kind}/{key}/state": with_path(lambda: world.handed_over()[0]),
    "DELETE /api/v1/resources/{kind}/{key}/lease": with_lease(world.held),
    "POST /api/v1/resources/{kind}/{key}/lease/renew": with_lease(world.held),
    "POST /api/v1/resources/{kind}/{key}/lease/revoke": with_lease(world.held),
    "PUT /api/v1/resources/{kind}/{key}/state": with_lease(world.held),
    HAND_OVER: offer,
    "GET /api/v1/resources/{kind}/{key}/handover": with_path(world.offered),
    "DELETE /api/v1/resources/{kind}/{key}/handover": with_path(world.offered),
    "POST /api/v1/resources/{kind}/{key}/failures": failing,
    "POST /api/v1/scenes/{id}/lease": free_scene,
    "POST /api/v1/scenes/{id}/lease/renew": with_lease(world.held_scene, holder="holder_id", token="version"),
    "GET /api/v1/orchestrator/jobs/{id}": with_path(lambda: {"id": world.JOB}),
    "GET /api/v1/sessions/{id}": with_path(world.session),
    "DELETE /api/v1/sessions/{id}": with_path(world.session),
    "PUT /api/v1/sessions/{id}/heartbeat": with_path(world.session),
    "GET /api/v1/runners/{id}": registered,
    "GET /api/v1/runners/{id}/assignments": registered,
    "PUT /api/v1/runners/{id}/heartbeat": registered,
    "PUT /api/v1/runners/{id}/status": registered,
    "DELETE /api/v1/runners/{id}": registered,
    "GET /api/v1/route/{kind}/{key}": any_node,
}
