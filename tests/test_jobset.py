"""The manifest of one run on Kubernetes: its fields, and the names that the script reads."""

import copy
import re
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MANIFEST = yaml.safe_load((EXAMPLES / "jobset.yaml").read_text("utf-8"))
SCRIPT = (EXAMPLES / "several_hosts.py").read_text("utf-8")
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def check(manifest):
    """Refuses a manifest whose processes would not find each other, or not start together."""
    assert manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert manifest["kind"] == "JobSet"
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    assert spec["failurePolicy"]["maxRestarts"] > 0
    (replicated,) = spec["replicatedJobs"]
    assert replicated["replicas"] == 1, "one run is one Job"
    job = replicated["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"], "all processes run at a time"
    assert job["backoffLimit"] == 0
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    command = container["command"]
    assert (EXAMPLES.parent / command[1]).is_file()
    assert set(command[2::2]) <= set(re.findall(r'add_argument\("(--\w+)"', SCRIPT))

    given = {one["name"]: one for one in container["env"]}
    read = set(re.findall(r'os\.environ\.get\("(\w+)"', SCRIPT))
    assert given.keys() == read, "the script reads other variables"
    assert given["JAX_NUM_PROCESSES"]["value"] == str(job["completions"])
    assert given["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
    host, port = given["JAX_COORDINATOR_ADDRESS"]["value"].split(":")
    assert spec["network"]["enableDNSHostnames"]
    # The name of the first pod of the first Job, as JobSet gives it.
    assert host == f"{name}-{replicated['name']}-0-0.{spec['network']['subdomain']}"
    ports = {one["containerPort"] for one in container["ports"]}
    assert ports == {int(port)}
    assert all(isinstance(one.get("value", ""), str) for one in given.values())


def test_the_manifest_starts_the_script():
    check(MANIFEST)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("completions",), 3),
        (("completionMode",), "NonIndexed"),
        (("backoffLimit",), 6),
        (("template", "spec", "containers", 0, "env", 0, "value"), "jspec-0:9911"),
        (("template", "spec", "containers", 0, "env", 0, "name"), "COORDINATOR"),
        (("template", "spec", "containers", 0, "env", 1, "value"), 2),
        (("template", "spec", "containers", 0, "ports", 0, "containerPort"), 9912),
        (("template", "spec", "containers", 0, "command", 2), "--wait"),
    ],
)
def test_a_wrong_manifest_is_found(place, wrong):
    manifest = copy.deepcopy(MANIFEST)
    part = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    for name in place[:-1]:
        part = part[name]
    assert part[place[-1]] != wrong
    part[place[-1]] = wrong
    with pytest.raises(AssertionError):
        check(manifest)
