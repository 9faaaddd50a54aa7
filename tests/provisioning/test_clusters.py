"""The files for Kubernetes and for Slurm: held against their own rules, and their scripts run as a cluster would."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

sys.path.append(str(Path(__file__).parents[1] / "approval"))

from signed_kit import write_kit

from fedretina.kit.site_check import process_path
from fedretina.storage import write_json
from fedretina.version import __version__
from ports import free_port

PROVISIONING = Path(__file__).resolve().parents[2] / "provisioning"
SITE = PROVISIONING / "kubernetes" / "site"
SCRIPT = PROVISIONING / "slurm" / "site.sbatch"
KUBERNETES = ("1.27", "1.33", "1.37")
"""Versions whose schemas the files are held against."""
SLURM = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
HELD = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Of each container; the unit and the options of `docker run` promise the same."""


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def lacking(asked, read, where=""):
    """Paths of `asked` that `read` lacks or says otherwise."""
    if isinstance(asked, dict) and isinstance(read, dict):
        return [path for key in asked for path in lacking(asked[key], read.get(key), f"{where}/{key}")]
    if isinstance(asked, list) and isinstance(read, list) and len(asked) == len(read):
        return [
            path for at, pair in enumerate(zip(asked, read, strict=True)) for path in lacking(*pair, f"{where}/{at}")
        ]
    return [] if str(asked) == str(read) else [where]  # a quantity, such as one card, is a text to Kubernetes


def files():
    named = yaml.safe_load((SITE / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in SITE.iterdir()} == {*named, "kustomization.yaml"}
    return [document for name in named for document in documents((SITE / name).read_text())]


def of_kind(kind, among):
    (found,) = [document for document in among if document["kind"] == kind]
    return found


def stateful_set():
    return of_kind("StatefulSet", files())["spec"]


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_files_are_what_kubernetes_takes(version):
    for document in files():
        kubernetes_validate.validate(document, version, strict=True)
    wrong = of_kind("StatefulSet", files())
    wrong["spec"]["template"]["spec"]["restartPolicies"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
@pytest.mark.parametrize(("variant", "cards"), [("site", None), ("site-gpu", 1)])
def test_kustomize_builds_both_forms(variant, cards):
    command = ["kubectl", "kustomize", PROVISIONING / "kubernetes" / variant]
    built = documents(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(built) == len(files())
    pod = of_kind("StatefulSet", built)["spec"]["template"]["spec"]
    (site,), (kit,) = pod["containers"], pod["initContainers"]
    assert site["image"] == kit["image"] == f"registry.hospital.example/fedretina:{__version__}"
    assert site["resources"]["limits"].get("nvidia.com/gpu") == cards
    assert {document["metadata"].get("namespace", "") for document in built} == {"", "fedretina"}
    # kubectl's dry run without a cluster: it reads what it built into Kubernetes' own types, and drops what they lack.
    mine = of_kind("StatefulSet", built)
    dry = ["kubectl", "set", "image", "--local", "--dry-run=client", "-f", "-", "-o", "json", "*=other.example/image:1"]
    read = subprocess.run(dry, input=json.dumps(mine), capture_output=True, text=True, check=True).stdout
    images = [f"/spec/template/spec/{kind}/0/image" for kind in ("containers", "initContainers")]
    assert sorted(lacking(mine, json.loads(read))) == images
    pod["restartPolicies"] = "Never"
    read = subprocess.run(dry, input=json.dumps(mine), capture_output=True, text=True, check=True).stdout
    assert sorted(lacking(mine, json.loads(read))) == [*images, "/spec/template/spec/restartPolicies"]


def test_a_pod_is_held_to_what_the_unit_is():
    found = stateful_set()
    pod = found["template"]["spec"]
    assert found["replicas"] == 1
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in (*pod["containers"], *pod["initContainers"]):
        assert container["securityContext"] == HELD
    (site,) = pod["containers"]
    read_only = {mount["mountPath"] for mount in site["volumeMounts"] if mount.get("readOnly")}
    assert read_only == {f"/srv/fedretina/{name}" for name in ("kit/startup", "kit/local", "images")}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    namespace = of_kind("Namespace", files())["metadata"]["labels"]
    assert namespace == {"pod-security.kubernetes.io/enforce": "restricted"}


def test_a_pod_reaches_the_server_alone():
    policy = of_kind("NetworkPolicy", files())["spec"]
    pod = stateful_set()["template"]
    assert policy["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == []
    (way,) = policy["egress"]
    (server,) = pod["spec"]["hostAliases"]
    assert way == {"to": [{"ipBlock": {"cidr": f"{server['ip']}/32"}}], "ports": [{"protocol": "TCP", "port": 8002}]}


def test_a_pod_takes_the_kit_as_it_was_given_and_hardens_it_anew(tmp_path):
    """The first container's own script, with the folders of this machine; an approval and the audit log stay."""
    given = write_kit(tmp_path / "given" / "first").folder
    lies = tmp_path / "srv"
    (lies / "kit" / "startup").mkdir(parents=True)
    (lies / "kit" / "approvals").mkdir()
    for left in ("daemon_pid.fl", "startup/of-before", "approvals/approvals.jsonl"):
        (lies / "kit" / left).write_text("1")
    (container,) = stateful_set()["template"]["spec"]["initContainers"]
    (script,) = container["args"]
    script = script.replace("/given/", f"{given}/")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "fedretina").write_text(f'#!/bin/sh\nexec {sys.executable} -m fedretina "$@"\n')
    (bin_folder / "fedretina").chmod(0o755)
    shell = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    for _ in range(2):  # at each start
        subprocess.run([*container["command"], script], cwd=lies, env=shell, check=True, capture_output=True)
    kit = lies / "kit"
    assert (kit / "startup" / "client.key").read_bytes() == (given / "startup" / "client.key").read_bytes()
    assert not (kit / "startup" / "of-before").exists()
    assert not (kit / "daemon_pid.fl").exists()
    assert (kit / "approvals" / "approvals.jsonl").exists()
    command = [sys.executable, "-m", "fedretina", "kit", "check", kit, "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    assert [line for line in found if line["good"] is False] == []


@pytest.mark.parametrize(("connected", "age", "ready"), [(True, 0, True), (False, 0, False), (True, 400, False)])
def test_a_pod_is_ready_while_it_is_connected(tmp_path, connected, age, ready):
    (site,) = stateful_set()["template"]["spec"]["containers"]
    (tmp_path / "status").mkdir()
    shell, option, script = site["readinessProbe"]["exec"]["command"]
    command = [shell, option, script.replace("/srv/fedretina/runs", str(tmp_path))]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode != 0
    path = process_path(tmp_path, "site-1")
    write_json(path, {"connected": connected, "written": time.time()})
    os.utime(path, (time.time() - age, time.time() - age))
    assert (subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0) is ready


def until(look, what, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A cluster of Slurm's own daemons on loopback: one node with two cards, which are empty files."""
    if os.getuid() != 0 or any(shutil.which(name) is None for name in SLURM):
        pytest.skip("Slurm (packages slurm-wlm and munge) is not on this machine, or the tests do not run as root")
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    for name in ("gpu0", "gpu1"):
        (folder / name).touch()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
    settings = {
        **{"ClusterName": "test", "SlurmctldHost": "localhost(127.0.0.1)", "SlurmUser": "root"},
        **{"SlurmctldPort": free_port(), "SlurmdPort": free_port(), "AuthInfo": f"socket={folder}/munge.sock"},
        **{"StateSaveLocation": folder / "state", "SlurmdSpoolDir": folder / "spool", "MailProg": "/bin/true"},
        **{"SlurmctldPidFile": folder / "ctld.pid", "SlurmdPidFile": folder / "d.pid", "GresTypes": "gpu"},
        **{"SlurmctldLogFile": folder / "ctld.log", "SlurmdLogFile": folder / "d.log"},
        **{"ProctrackType": "proctrack/pgid", "TaskPlugin": "task/none", "SelectType": "select/cons_tres"},
        **{"SelectTypeParameters": "CR_Core_Memory", "SlurmdParameters": "config_overrides"},
    }
    node = "NodeName=localhost NodeAddr=127.0.0.1 CPUs=8 RealMemory=20000 Gres=gpu:2"
    lines = [f"{name}={value}" for name, value in settings.items()]
    lines += [node, "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    own = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log"}
    daemons = [
        [
            "munged",
            "--force",
            *(f"--{name}={folder / path}" for name, path in own.items()),
            f"--seed-file={folder}/seed",
        ],
        ["slurmctld", "-i"],
        ["slurmd", "-N", "localhost"],
    ]
    try:
        for command in daemons:
            subprocess.run(command, check=True, capture_output=True)
        until(lambda: "idle" in ask("sinfo", "-h", "-o", "%t"), "the node is idle")
        yield folder
        ask("scancel", "--full", "--user", "root")
    finally:
        for path in folder.glob("*.pid"):
            os.kill(int(path.read_text()), signal.SIGKILL)


def ask(*words):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False).stdout


def test_slurm_takes_the_script_holds_a_second_back_and_begins_again_at_the_limit(slurm, tmp_path, monkeypatch):
    tried = subprocess.run(["sbatch", "--test-only", SCRIPT], capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    assert "using 4 processors" in tried.stderr
    kit = tmp_path / "srv" / "kit"
    (kit / "startup").mkdir(parents=True)
    (kit / "pid.fl").write_text("1")
    (kit / "startup" / "sub_start.sh").write_text(
        'echo "starts with $OPENSSL_CONF"; trap "echo stops; exit 0" TERM; sleep 600 & wait\n'
    )
    monkeypatch.setenv("FEDRETINA_KIT", str(kit))
    monkeypatch.setenv("FEDRETINA_SCRATCH", str(tmp_path / "scratch"))
    log = tmp_path / "slurm.log"
    for _ in range(2):
        assert "Submitted" in ask("sbatch", "--mem=1G", f"--output={log}", SCRIPT)
    until(lambda: log.exists() and "starts with" in log.read_text(), "the site starts")
    assert f"starts with {kit}/local/openssl.cnf" in log.read_text()
    assert not (kit / "pid.fl").exists()
    assert (tmp_path / "srv" / "cache-of-this-node").resolve() == tmp_path / "scratch"
    states = dict(line.split() for line in ask("squeue", "-h", "-o", "%i %t").splitlines())
    (runs,) = [number for number, state in states.items() if state == "R"]
    assert sorted(states.values()) == ["PD", "R"]
    ask("scancel", "--signal=TERM", "--batch", runs)  # as Slurm does before the time limit
    until(lambda: ask("squeue", "-h", "-j", runs, "-o", "%t").strip() == "PD", "it waits in the queue again")
    assert log.read_text().count("stops") == 1
    assert not (tmp_path / "scratch").exists()


def test_the_script_ends_with_an_admins_stop_and_starts_again_otherwise(tmp_path):
    """By bash alone, as where no Slurm is; the pause between two starts is left out."""
    kit = tmp_path / "srv" / "kit"
    (kit / "startup").mkdir(parents=True)
    (kit / "startup" / "sub_start.sh").write_text(
        "echo start >> told; case $(wc -l < told) in 1) exit 3;; 2) touch restart.fl;; esac\n"
    )
    script = SCRIPT.read_text()
    assert re.findall(r"^ +sleep 10 & wait \$!$", script, re.MULTILINE)
    shell = {**os.environ, "SLURM_JOB_ID": "1", "FEDRETINA_KIT": str(kit), "FEDRETINA_SCRATCH": str(tmp_path / "own")}
    command = ["bash", "-c", script.replace("sleep 10 & wait $!", ":")]
    assert subprocess.run(command, env=shell, check=False).returncode == 0
    assert (kit / "told").read_text() == "start\n" * 3
    assert not (tmp_path / "own").exists()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not on this machine")
def test_shellcheck_finds_nothing(tmp_path):
    (container,) = stateful_set()["template"]["spec"]["initContainers"]
    (tmp_path / "kit.sh").write_text("#!/bin/bash\n" + container["args"][0])
    checked = subprocess.run(["shellcheck", SCRIPT, tmp_path / "kit.sh"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
