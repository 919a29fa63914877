"""The Kubernetes objects: their schema, what kustomize makes of them, and whether they fit each other."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it ships no types
import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own

from tests.test_deploy import DEPLOY, IMAGE_USER, found, project, run

KUBERNETES = DEPLOY / "kubernetes"
APPLIED = ("sqlite-sidecar", "postgres", "postgres/prepare")
# the first that has native sidecars for good, and the newest that the validator knows
VERSIONS: tuple[str, str] = ("1.33", kubernetes_validate.latest_version())
# what the sidecar takes at most to stop
STOP_SECONDS = 10

applied = pytest.mark.parametrize("name", APPLIED)


def kustomization(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    return read


def resources(folder: Path) -> list[dict[str, Any]]:
    """The objects of a kustomization and of those it names, as they are written, but in its namespace."""
    described = kustomization(folder)
    read: list[dict[str, Any]] = []
    for name in described["resources"]:
        path = folder / name
        read += resources(path) if path.is_dir() else yaml.safe_load_all(path.read_text("utf-8"))
    for generated in described.get("configMapGenerator", ()):
        lines = [line for env in generated["envs"] for line in (folder / env).read_text("utf-8").splitlines()]
        data = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
        read.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generated["name"]}, "data": data})
    for each in read:
        if each["kind"] != "Namespace":
            each["metadata"]["namespace"] = described["namespace"]
    return read


def pods(folder: Path) -> list[dict[str, Any]]:
    """The Pod templates of the Deployments, StatefulSets and Jobs."""
    return [each["spec"]["template"] for each in resources(folder) if "template" in each.get("spec", {})]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@applied
@pytest.mark.parametrize("version", VERSIONS)
def test_objects_follow_the_schema(name: str, version: str) -> None:
    """Each object is one of that Kubernetes, with no key that it does not know."""
    for each in resources(KUBERNETES / name):
        kubernetes_validate.validate(each, version, strict=True)


@applied
def test_kustomize_makes_of_it_what_is_tested_here(name: str) -> None:
    """The real kustomize finds the same objects; only images, and the names of config maps, differ."""
    built = list(yaml.safe_load_all(run(found("kubectl"), "kustomize", KUBERNETES / name)))
    told = {(each["kind"], re.sub(r"-[a-z0-9]{10}$", "", each["metadata"]["name"])) for each in built}
    assert told == {(each["kind"], each["metadata"]["name"]) for each in resources(KUBERNETES / name)}
    images = {
        container["image"]
        for each in built
        if "template" in each.get("spec", {})
        for container in containers(each["spec"]["template"])
    }
    assert {f"a2a-session-sidecar:{project()['version']}"} == images - {"your-agent"}


def test_the_images_have_the_version_of_the_project() -> None:
    """Every kustomization that is applied gives the image its tag."""
    tags = [each["newTag"] for name in APPLIED for each in kustomization(KUBERNETES / name)["images"]]
    assert [project()["version"]] * len(APPLIED) == tags


def test_no_file_is_forgotten() -> None:
    """Every file of the folder is part of a kustomization that can be applied."""
    folders = [KUBERNETES / name for name in ("base", *APPLIED)]
    named = {folder / "kustomization.yaml" for folder in folders}
    for folder in folders:
        described = kustomization(folder)
        envs = [env for each in described.get("configMapGenerator", ()) for env in each["envs"]]
        named |= {folder / name for name in (*described["resources"], *envs) if (folder / name).is_file()}
    assert named == {path for path in KUBERNETES.rglob("*") if path.is_file()}


@applied
def test_pods_are_restricted(name: str) -> None:
    """They pass the Restricted standard, with a read-only root, bounded memory, and no token of the cluster's API."""
    for pod in pods(KUBERNETES / name):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        whose = spec["securityContext"]
        assert (True, IMAGE_USER, {"type": "RuntimeDefault"}) == (
            whose["runAsNonRoot"],
            whose["runAsUser"],
            whose["seccompProfile"],
        )
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert {*_kinds(spec["volumes"])} <= {"emptyDir", "secret"}
        for container in containers(pod):
            allowed = container["securityContext"]
            assert allowed["allowPrivilegeEscalation"] is False
            assert {"drop": ["ALL"]} == allowed["capabilities"]
            assert allowed.get("readOnlyRootFilesystem") or container["image"] == "your-agent"
            assert {"cpu", "memory"} == container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


def _kinds(volumes: list[dict[str, Any]]) -> set[str]:
    return {kind for volume in volumes for kind in volume.keys() - {"name"}}


@applied
def test_what_pods_mount_and_read_is_there(name: str) -> None:
    """Each mount has its volume, each `_FILE` lies below a mounted secret, each config map is made."""
    made = {each["metadata"]["name"] for each in resources(KUBERNETES / name) if each["kind"] == "ConfigMap"}
    for each in resources(KUBERNETES / name):
        if "template" not in each.get("spec", {}):
            continue
        claims = {claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", ())}
        pod = each["spec"]["template"]
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]} | claims
        for container in containers(pod):
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts.keys() <= volumes
            files = [entry["value"] for entry in container.get("env", ()) if entry["name"].endswith("_FILE")]
            assert all(file.startswith(f"{mounts['secrets']}/") for file in files)
            assert {source["configMapRef"]["name"] for source in container.get("envFrom", ())} <= made


@pytest.mark.parametrize(("name", "serving_pods"), [("sqlite-sidecar", 1), ("postgres", 1), ("postgres/prepare", 0)])
def test_selectors_meet_the_serving_pods_alone(name: str, serving_pods: int) -> None:
    """The Service and the budget choose the Pods that serve, the policies these and `prepare`'s; named ports exist."""
    own = resources(KUBERNETES / name)
    service = next(each for each in resources(KUBERNETES / "base") if each["kind"] == "Service")
    chosen = [pod for pod in pods(KUBERNETES / name) if _selects(service["spec"]["selector"], pod)]
    assert serving_pods == len(chosen)
    for each in own:
        if each["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            assert [each["spec"]["selector"]["matchLabels"]] == [pod["metadata"]["labels"] for pod in chosen]
        if each["kind"] == "NetworkPolicy":
            assert _selects(each["spec"]["podSelector"]["matchLabels"], chosen[0])
            opened = {port["port"] for rule in each["spec"].get("ingress", ()) for port in rule["ports"]}
            assert opened <= _ports(chosen[0])
    assert all(service["spec"]["ports"][0]["targetPort"] in _ports(pod) for pod in chosen)
    policies = [each["spec"] for each in resources(KUBERNETES / "postgres") if each["kind"] == "NetworkPolicy"]
    for pod in pods(KUBERNETES / name):
        assert all(_selects(policy["podSelector"]["matchLabels"], pod) for policy in policies)


def _selects(labels: dict[str, str], pod: dict[str, Any]) -> bool:
    return bool(labels.items() <= pod["metadata"]["labels"].items())


def _ports(pod: dict[str, Any]) -> set[str]:
    return {port["name"] for container in containers(pod) for port in container.get("ports", ())}


def test_the_native_sidecar_never_holds_up_the_agent() -> None:
    """It starts first and restarts alone; it is asked whether it lives and never whether the store can be read."""
    (pod,) = pods(KUBERNETES / "sqlite-sidecar")
    (sidecar,) = pod["spec"]["initContainers"]
    assert "Always" == sidecar["restartPolicy"]
    assert ["/livez", "/livez"] == [sidecar[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")]
    assert "readinessProbe" not in sidecar


def test_replicas_are_ready_when_the_store_can_be_read() -> None:
    """Two replicas take requests by `/readyz`, restart by `/livez`, and end later than the sidecar's own stop."""
    (deployment,) = (each for each in resources(KUBERNETES / "postgres") if each["kind"] == "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (sidecar,) = spec["containers"]
    assert 2 == deployment["spec"]["replicas"]
    assert ["/readyz", "/livez"] == [sidecar[each]["httpGet"]["path"] for each in ("readinessProbe", "livenessProbe")]
    waits = sidecar["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] >= waits + STOP_SECONDS
