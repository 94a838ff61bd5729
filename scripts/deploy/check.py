"""Checks what is in deploy/: see scripts/check-deploy."""

import json
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/kubernetes/chart"
MANIFESTS = ROOT / "deploy/kubernetes/manifests"
COMPOSE = ROOT / "deploy/compose"
HELM = Path(sys.executable).with_name("helm")

PARTS = ["server", "agent", "sidecar", "gate", "orchestrator"]
ALL = [f"{part}.enabled=true" for part in PARTS] + ["serviceMonitor.enabled=true"]
# Values that take other ways through the templates.
VARIANTS = [
    [],
    ALL,
    [*ALL, "secrets.tls=", "gate.proxyPort=8080"],
    [*ALL, "networkPolicy.enabled=false"],
    [*ALL, "secrets.orchestratorKey=solehold-orchestrator-key"],
]
# The oldest version that Chart.yaml names, and the newest that kubernetes-validate knows.
VERSIONS = ["1.27", "1.37"]
# Documents of operators, for which Kubernetes has no schema.
WITHOUT_SCHEMA = {"ServiceMonitor"}

problems = []


def expect(condition, problem):
    if not condition:
        problems.append(problem)


def helm(*arguments):
    done = subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60)
    if done.returncode:
        sys.exit(f"helm {' '.join(map(str, arguments))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def render(settings):
    options = [word for setting in settings for word in ("--set", setting)]
    return helm("template", "solehold", CHART, "--namespace", "solehold", *options)


def manifests():
    """The text of each template, under the name of its file."""
    header = "# Made by scripts/check-deploy --write from the chart beside this folder: change that one.\n"
    files = {}
    for document in re.split(r"(?m)^---\n", render(ALL)):
        if document.strip():
            source = re.match(r"# Source: solehold/templates/(\S+)\n", document)
            text = document[source.end():].rstrip() + "\n"
            files.setdefault(source.group(1), []).append(text)
    return {name: header + "---\n" + "---\n".join(texts) for name, texts in sorted(files.items())}


def check_manifests(write):
    wanted = manifests()
    if write:
        MANIFESTS.mkdir(exist_ok=True)
        for file in MANIFESTS.glob("*.yaml"):
            file.unlink()
        for name, text in wanted.items():
            (MANIFESTS / name).write_text(text)
    found = {file.name: file.read_text() for file in MANIFESTS.glob("*.yaml")}
    for name in sorted(wanted.keys() | found.keys()):
        expect(
            wanted.get(name) == found.get(name),
            f"deploy/kubernetes/manifests/{name} is not what the chart gives: run scripts/check-deploy --write",
        )


def check_schemas(where, documents):
    for document in documents:
        if document["kind"] in WITHOUT_SCHEMA:
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                message = getattr(error, "message", str(error))
                problems.append(f"{where}: {document['kind']} {document['metadata']['name']}: {message}")


def pre_stop(container):
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    expect(command[0] == "sleep", f"{container['name']}: preStop is {command}")
    return int(command[1])


def check_pods(where, documents, values):
    """What no schema knows: no pod is killed while it drains, or may do more than it needs."""
    named = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for document in documents:
        if document["kind"] != "Deployment":
            continue
        name = document["metadata"]["name"]
        part = name.removeprefix("solehold-")
        place = f"{where}: {name}"
        pod = document["spec"]["template"]["spec"]
        stop = values["agent" if part == "sidecar" else part]["stopSeconds"]
        expect(("PodDisruptionBudget", name) in named, f"{place} has no PodDisruptionBudget")
        expect(pod["securityContext"].get("runAsNonRoot"), f"{place} may run as root")
        expect("podAntiAffinity" in pod["affinity"], f"{place} has no anti-affinity")
        mounted = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            place = f"{where}: {name}/{container['name']}"
            grace = pod["terminationGracePeriodSeconds"]
            needed = pre_stop(container) + (0 if container["name"] == "application" else stop)
            expect(grace > needed, f"{place} is killed after {grace} s, and takes up to {needed} s to stop")
            security = container["securityContext"]
            expect(security.get("readOnlyRootFilesystem"), f"{place} may write to its image")
            expect(security.get("capabilities") == {"drop": ["ALL"]}, f"{place} has capabilities")
            expect({"requests", "limits"} <= container["resources"].keys(), f"{place} has no resources")
            for mount in container["volumeMounts"]:
                expect(mount["name"] in mounted, f"{place} mounts {mount['name']}, which is no volume")
            for variable in container.get("env", []):
                secret = variable["name"].endswith(("_KEY", "_ENGINE", "_URL"))
                expect(not secret or variable["name"] == "SOLEHOLD_TLS_KEY", f"{place}: {variable['name']} is not a file")
            if container["name"] != "application":
                for probe, path in [("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")]:
                    found = container[f"{probe}Probe"]["httpGet"]
                    expect(found["path"] == path, f"{place}: its {probe} probe asks {found['path']}")
                    ports = {port["name"] for port in container["ports"]}
                    expect(found["port"] in ports, f"{place}: its {probe} probe asks port {found['port']}")


def check_agents(where, documents, values):
    for document in documents:
        if document["kind"] == "ConfigMap":
            config = yaml.safe_load(document["data"]["agent.yaml"])
            budget = config["drain_budget_seconds"]
            place = f"{where}: {document['metadata']['name']}"
            expect(budget == values["agent"]["stopSeconds"], f"{place} drains for {budget} s")
            expect(config["worker"]["command"], f"{place} has no worker")


def compose(name):
    """A compose file with those that it includes."""
    document = yaml.safe_load((COMPOSE / name).read_text())
    for included in document.pop("include", []):
        for key, section in compose(included).items():
            document[key] = {**section, **document.get(key, {})} if isinstance(section, dict) else section
    return document


def check_compose(name):
    document = compose(name)
    services = document["services"]
    targets = set(re.findall(r"(?m)^FROM \S+ AS (\S+)", (ROOT / "Containerfile").read_text()))
    for service, body in services.items():
        place = f"deploy/compose/{name}: {service}"
        expect("container_name" not in body, f"{place} has a fixed name, and cannot be scaled")
        scaled = service == "worker" or "replicas" in body.get("deploy", {})
        expect(not (scaled and body.get("ports")), f"{place} has a port of this machine, and cannot be scaled")
        for needed, how in body.get("depends_on", {}).items():
            expect(needed in services, f"{place} depends on {needed}, which is not there")
            if how["condition"] == "service_healthy" and needed in services:
                is_server = services[needed].get("command") == ["serve"]
                expect(is_server or "healthcheck" in services[needed], f"{place}: {needed} has no health check")
        for secret in body.get("secrets", []):
            expect(secret in document["secrets"], f"{place}: there is no secret {secret}")
        given = body.get("environment", {})
        for variable, value in given.items():
            if variable.endswith("_FILE"):
                expect(Path(value).name in body["secrets"], f"{place}: {variable} is {value}, which is not mounted")
        for volume in body.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                expect((COMPOSE / source).is_file(), f"{place} mounts {source}, which is not there")
            else:
                expect(source in document["volumes"], f"{place}: there is no volume {source}")
        if "build" in body:
            context = COMPOSE / body["build"]["context"]
            expect((context / body["build"]["dockerfile"]).is_file(), f"{place}: there is no {body['build']}")
            target = body["build"].get("target")
            expect(target is None or target in targets, f"{place}: the Containerfile has no stage {target}")
        if body.get("read_only") and body["restart"] != "on-failure" and service != "analytics":
            expect(service == "sink" or "stop_grace_period" in body, f"{place} has no time to stop")
    return len(services)


def check_bill(version):
    """The bill of materials keeps to its format, and is the same each time."""
    command = [ROOT / "scripts/bill-of-materials", "kafka", version]
    first, second = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2))
    expect(first == second, "two bills of materials of one lock file differ")
    odd = JsonStrictValidator(SchemaVersion.V1_6).validate_str(first)
    expect(odd is None, f"the bill of materials is not CycloneDX 1.6: {odd}")
    crates = [part["name"] for part in json.loads(first)["components"]]
    expect({"solehold-core", "tokio", "rustls"} <= set(crates), f"the bill of materials names only {crates}")
    return len(crates)


def main():
    helm("lint", "--strict", CHART)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    check_manifests("--write" in sys.argv[1:])
    count = 0
    for settings in VARIANTS:
        where = "chart with " + (" ".join(settings) or "its defaults")
        documents = [document for document in yaml.safe_load_all(render(settings)) if document]
        count += len(documents)
        check_schemas(where, documents)
        check_pods(where, documents, values)
        check_agents(where, documents, values)
    version = re.search(r'(?m)^version = "(.*)"', (ROOT / "Cargo.toml").read_text()).group(1)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    expect(chart["appVersion"] == version, f"Chart.yaml is of version {chart['appVersion']}, and Cargo.toml of {version}")
    examples = sorted(file.name for file in COMPOSE.glob("*.yaml") if "name" in yaml.safe_load(file.read_text()))
    services = sum(check_compose(name) for name in examples)
    crates = check_bill(version)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{count} rendered documents and {services} services of {len(examples)} compose files are in order")
    print(f"the bill of materials names {crates} crates")


main()
