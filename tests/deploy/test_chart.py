"""The Helm chart: linted, valid for Kubernetes, and with settings that the broker accepts."""

from __future__ import annotations

import functools
import importlib
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.served_settings import served_settings
from harness.tool.deploy_tool import REPOSITORY, go_tool, kubernetes_schemas, run
from millstream.broker.lifecycle import membership
from millstream.broker.server import CLOSE_S_MAX

CHART = REPOSITORY / "deploy" / "helm" / "millstream"
SCRIPT = CHART / "files" / "write_config.py"
#: Values that lead to different objects.
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one broker": {"replicas": 1, "metadata": {"store": ""}},
    "without racks": {"rack": {"enabled": False}},
    "with TLS": {
        "tls": {"secret": "broker-tls", "clientAuth": "required"},
        "http": {"tokenSecret": "http-token"},
        "podMonitor": {"enabled": True},
    },
    "everything": {
        "settings": {
            "log.retention.ms": 604_800_000,
            "log.retention.bytes": -1,
            "log.cleaner.min.cleanable.ratio": 0.25,
            "auto.create.topics.enable": False,
        },
        "persistence": {"size": "1Ti", "storageClassName": "fast"},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "brokers", "operator": "Exists"}],
        "priorityClassName": "high",
        "podAnnotations": {"team": "streams"},
        "podLabels": {"team": "streams"},
        "podMonitor": {"enabled": True},
        "serviceAccount": {"annotations": {"team": "streams"}},
    },
}
each_case = pytest.mark.parametrize("case", CASES)


def template(values: Mapping[str, Any], version: str = "v1.37.0") -> str:
    command = [go_tool("helm"), "template", "shop", CHART, "--kube-version", version]
    return run(*command, "--namespace", "queue", "--values", "-", stdin=yaml.safe_dump(values))


@functools.cache
def objects(case: str) -> dict[str, dict[str, Any]]:
    """Return the rendered objects by kind; of several of a kind, the last."""
    return {row["kind"]: row for row in yaml.safe_load_all(template(CASES[case])) if row}


def pod(case: str) -> dict[str, Any]:
    spec: dict[str, Any] = objects(case)["StatefulSet"]["spec"]["template"]["spec"]
    return spec


def broker(case: str) -> dict[str, Any]:
    (container,) = pod(case)["containers"]
    return dict(container)


def test_helm_finds_no_fault() -> None:
    run(go_tool("helm"), "lint", "--strict", "--kube-version", "v1.37.0", CHART)


@each_case
def test_the_objects_are_valid_for_kubernetes(case: str) -> None:
    for version, folder in kubernetes_schemas().items():
        location = f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
        command = [go_tool("kubeconform"), "-strict", "-schema-location", location]
        # The schema of PodMonitor comes with the Prometheus operator.
        rendered = template(CASES[case], version)
        output = run(*command, "-skip", "PodMonitor", "-output", "json", "-summary", stdin=rendered)
        summary = json.loads(output)["summary"]
        assert summary["valid"] >= 5
        assert summary["skipped"] == rendered.count("kind: PodMonitor")


def variables(case: str) -> dict[str, str]:
    """Return the container's variables, as Kubernetes sets them for the second broker."""
    of_pod = {
        "metadata.name": "shop-millstream-1",
        "metadata.namespace": "queue",
        "metadata.labels['apps.kubernetes.io/pod-index']": "1",
    }
    given: dict[str, str] = {}
    for row in broker(case)["env"]:
        field = row.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        value = of_pod[field] if field else row["value"]
        for name, text in given.items():
            value = value.replace(f"$({name})", text)
        given[row["name"]] = value
    return given


@each_case
def test_the_broker_accepts_its_settings(case: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(objects(case)["ConfigMap"]["data"]["broker.toml"])
    given = variables(case) | {"MILLSTREAM_CONFIG": str(file)}
    settings = served_settings(given)
    assert settings["node.id"] == "1"
    protocol = "SSL" if "tls" in CASES[case] else "PLAINTEXT"
    assert settings["advertised.listeners"] == (
        f"{protocol}://shop-millstream-1.shop-millstream-brokers.queue.svc.cluster.local:9092"
    )
    for name, value in CASES[case].get("settings", {}).items():
        assert settings[name] == str(value).lower()
    mounts = {mount["mountPath"] for mount in broker(case)["volumeMounts"]}
    assert str(Path(str(settings["log.dir"])).parent) in mounts


@pytest.mark.parametrize("case", ["defaults", "with TLS"])
def test_settings_that_the_chart_sets_are_rejected(case: str) -> None:
    """Variables take precedence over the settings file, so such a setting would have no effect."""
    names = {name.removeprefix("MILLSTREAM_").lower().replace("_", ".") for name in variables(case)}
    schema = json.loads((CHART / "values.schema.json").read_text())
    rejected = schema["properties"]["settings"]["propertyNames"]["not"]["enum"]
    assert names - {"pod.name", "pod.namespace", "config"} <= set(rejected)


@each_case
def test_names_and_labels_fit_together(case: str) -> None:
    rows = objects(case)
    stateful_set = rows["StatefulSet"]["spec"]
    labels = stateful_set["template"]["metadata"]["labels"]
    selectors = [
        stateful_set["selector"]["matchLabels"],
        rows["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        rows["Service"]["spec"]["selector"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
    ports = {row["name"] for row in broker(case)["ports"]}
    assert {row["targetPort"] for row in rows["Service"]["spec"]["ports"]} <= ports
    volumes = {row["name"] for row in pod(case)["volumes"]} | {"data"}
    for container in [broker(case), *pod(case).get("initContainers", [])]:
        assert {row["name"] for row in container["volumeMounts"]} <= volumes
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod(case)["securityContext"]["runAsNonRoot"] is True


def test_only_the_init_container_can_read_nodes() -> None:
    assert pod("defaults")["automountServiceAccountToken"] is False
    mounts = {mount["name"] for mount in broker("defaults")["volumeMounts"]}
    assert "credentials" not in mounts
    (init,) = pod("defaults")["initContainers"]
    assert "credentials" in {mount["name"] for mount in init["volumeMounts"]}
    assert objects("defaults")["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    ]
    assert "ClusterRole" not in objects("without racks")


def test_a_rolling_update_waits_until_a_broker_is_in_sync() -> None:
    probes = {name: broker("defaults")[name] for name in broker("defaults") if "Probe" in name}
    paths = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert paths == {
        "startupProbe": "/readyz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz/in-sync",
    }
    assert objects("defaults")["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_probes_send_the_token() -> None:
    """All probes but the liveness probe send the token. The PodMonitor gives it to Prometheus."""
    container = broker("with TLS")
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    for name, page in {"startupProbe": "/readyz", "readinessProbe": "/readyz/in-sync"}.items():
        command = container[name]["exec"]["command"]
        assert command[-2:] == [f"http://127.0.0.1:9644{page}", "/etc/millstream-http/token"]
        importlib.import_module(command[2])
    (endpoint,) = objects("with TLS")["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "http-token", "key": "token"}


def test_a_broker_has_time_to_shut_down() -> None:
    drain_s = int(served_settings({})["shutdown.drain.timeout.ms"] or 0) / 1000
    stop_s_max = membership._HAND_OVER_S_MAX + drain_s + CLOSE_S_MAX
    assert pod("defaults")["terminationGracePeriodSeconds"] > stop_s_max


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"metadata": {"store": ""}}, "more than one broker need a shared etcd"),
        ({"settings": {"node.id": 3}}, "node.id"),
        ({"settings": {"ssl.client.auth": "required"}}, "ssl.client.auth"),
        ({"metadata": {"store": "zookeeper:2181"}}, "/metadata/store"),
        ({"replica": 3}, "replica"),
        ({"settings": {"log.retention.ms": 2**63 - 1}}, "settings.log.retention.ms.*in quotes"),
        ({"terminationGracePeriodSeconds": 5}, "/terminationGracePeriodSeconds"),
    ],
    ids=[
        "no store",
        "own setting",
        "own TLS",
        "other store",
        "unknown value",
        "large number",
        "too short",
    ],
)
def test_wrong_values_are_rejected(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        template(values)


def test_the_version_of_the_application_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project


@contextmanager
def kubernetes_api(folder: Path, node: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Serve one node over TLS; yield the variables and credentials of a container."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == "Bearer secret"
            self.send_response(200 if allowed and self.path == "/api/v1/nodes/n1" else 403)
            self.end_headers()
            self.wfile.write(json.dumps(node).encode())

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    names = ["-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"]
    keys = ["-nodes", "-newkey", "rsa:2048", "-keyout", "key.pem", "-out", "ca.crt"]
    subprocess.run(
        ["openssl", "req", "-x509", *keys, *names], cwd=folder, check=True, capture_output=True
    )
    (folder / "token").write_text("secret")
    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.server_port),
            "CREDENTIALS": str(folder),
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_config(folder: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    (folder / "source.toml").write_text('"log.retention.hours" = "24"\n')
    own = {"NODE_LABEL": "topology.kubernetes.io/zone"}
    own |= {"SOURCE": str(folder / "source.toml"), "TARGET": str(folder / "broker.toml")}
    return subprocess.run(
        [sys.executable, SCRIPT],
        env={**os.environ, "NODE_NAME": "n1", **own, **variables},
        capture_output=True,
        text=True,
    )


def test_the_zone_of_the_node_becomes_the_rack(tmp_path: Path) -> None:
    node = {"metadata": {"labels": {"topology.kubernetes.io/zone": "eu-1a"}}}
    with kubernetes_api(tmp_path, node) as variables:
        result = write_config(tmp_path, variables)
    assert (result.returncode, result.stdout) == (0, "rack eu-1a, from node n1\n")
    settings = served_settings({}, "--config", str(tmp_path / "broker.toml"))
    assert settings["broker.rack"] == "eu-1a"
    assert settings["log.retention.hours"] == "24"


def test_a_node_without_a_zone_gives_no_rack(tmp_path: Path) -> None:
    with kubernetes_api(tmp_path, {"metadata": {}}) as variables:
        result = write_config(tmp_path, variables)
    assert result.returncode == 0
    assert "node n1 has no label topology.kubernetes.io/zone" in result.stderr
    settings = served_settings({}, "--config", str(tmp_path / "broker.toml"))
    assert settings["broker.rack"] is None


def test_a_node_that_may_not_be_read_fails_the_start(tmp_path: Path) -> None:
    with kubernetes_api(tmp_path, {"metadata": {}}) as variables:
        result = write_config(tmp_path, {**variables, "NODE_NAME": "other"})
    assert result.returncode == 1
    assert "cannot read node other" in result.stderr
    assert "rack.enabled=false" in result.stderr
    assert not (tmp_path / "broker.toml").exists()
