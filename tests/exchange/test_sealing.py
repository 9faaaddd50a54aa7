"""Encrypted heads: what comes back is what went in, the server cannot open it, and a run ends as one in the clear."""

import stat
import struct
import subprocess
import sys
import zlib

import pytest
import torch
from click.testing import CliRunner

from fedretina.aggregation.coordinator import Coordinator
from fedretina.cli import main
from fedretina.errors import DataError, RefusedError, SettingsError
from fedretina.exchange.encryption import SERVER_FILE, SITE_FILE, cipher_for, new_keys
from fedretina.exchange.partition import partition_of
from fedretina.exchange.payload import Payload
from fedretina.local.site import Site
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.settings.exchange import ExchangeSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import RestartSettings
from fedretina.storage import read_tensors

tenseal = pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
ENCRYPT = ExchangeSettings(personal="nothing", encrypt="head")
WORDS = {"grades": 5, "exchange": {"personal": "nothing", "encrypt": "head"}}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    new_keys(folder)
    return folder


@pytest.fixture(scope="module")
def site(keys):
    return cipher_for(ENCRYPT, keys / SITE_FILE, private=True)


@pytest.fixture(scope="module")
def server(keys):
    return cipher_for(ENCRYPT, keys / SERVER_FILE, private=False)


def values(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (64, 64), (4097,), (3, 2, 1000)])
def test_what_is_opened_is_what_was_sealed(site, server, shape):
    sealed = site.seal(values(*shape))
    server.require("head.w", sealed, values(*shape).numel())
    opened = site.open("head.w", sealed, shape, torch.float32)
    assert (opened.shape, opened.dtype) == (torch.Size(shape), torch.float32)
    torch.testing.assert_close(opened, values(*shape), rtol=0, atol=1e-6)


def test_the_server_mixes_what_it_cannot_open(site, server):
    sent = [values(70, 80, seed=seed) for seed in range(3)]
    weights = [0.5, 0.3, 0.2]
    mixed = server.mix([(weight, site.seal(tensor)) for weight, tensor in zip(weights, sent, strict=True)])
    slow = sum(weight * tensor.double() for weight, tensor in zip(weights, sent, strict=True))
    torch.testing.assert_close(site.open("head.w", mixed, (70, 80), torch.float64), slow, rtol=0, atol=2e-6)
    with pytest.raises(ValueError, match="secret_key"):
        server.open("head.w", mixed, (70, 80), torch.float32)


def test_a_sealed_tensor_tells_nothing_by_its_bytes(site):
    tensor = torch.zeros(100)
    first, second = site.seal(tensor), site.seal(tensor)
    assert not torch.equal(first, second)
    assert len(torch.unique(first[1000:])) == 256


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda sealed: sealed[:-100], "holds"),
        (lambda sealed: torch.cat([sealed[:24], torch.zeros_like(sealed[24:])]), "holds"),
        (lambda sealed: torch.cat([255 - sealed[:16], sealed[16:]]), "other keys"),
        (lambda sealed: sealed[:16], "another length"),
        (lambda sealed: sealed.repeat(4), "at most"),
        (lambda sealed: torch.zeros(10), "must travel encrypted"),
    ],
)
def test_what_cannot_be_mixed_is_refused(site, server, broken, said):
    with pytest.raises(RefusedError, match=said):
        server.require("head.w", broken(site.seal(values(10))), 10)


def test_a_ciphertext_that_was_mixed_before_is_refused(site, server):
    replayed = server.mix([(1.0, site.seal(values(10)))])
    with pytest.raises(RefusedError, match="cannot be mixed"):
        server.require("head.w", replayed, 10)


FORGED = """
import sys
from pathlib import Path
import torch
from fedretina.errors import RefusedError
from fedretina.exchange.encryption import SERVER_FILE, SITE_FILE, cipher_for
from fedretina.settings.exchange import ExchangeSettings

keys = Path(sys.argv[1])
exchange = ExchangeSettings(personal="nothing", encrypt="head")
site, server = (cipher_for(exchange, keys / name, private=name == SITE_FILE) for name in (SITE_FILE, SERVER_FILE))
honest = site.seal(torch.ones(100))
for forged in map(Path, sys.argv[2:]):
    body = torch.tensor(list(forged.read_bytes()), dtype=torch.uint8)
    sealed = torch.cat([honest[:16], torch.tensor(list(len(body).to_bytes(8, "little")), dtype=torch.uint8), body])
    print("begun", forged.name, flush=True)
    try:
        server.require("head.w", sealed, 100)
        server.mix([(0.5, honest), (0.5, sealed)])  # which ended the process
    except RefusedError as refusal:
        print(forged.name, refusal, flush=True)
    try:
        site.open("head.w", sealed, (100,), torch.float32)
    except RefusedError as refusal:
        print(forged.name, refusal, flush=True)
"""


def field(number, content):
    """A field of a protobuf message."""
    length, size = b"", len(content)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def forge(keys, polynomials=2, scale=2.0**40, number=1):
    """What TenSEAL reads as a vector of 100 numbers under these keys, its parts as one likes."""
    written = (keys / SERVER_FILE).read_bytes()[16:]
    context = tenseal.context_from(written)
    mark = written[written.index(b"\x5e\xa1\x10") :][:5]  # of SEAL, the length of its header, and its version
    level = context.seal_context().data.first_parms_id()

    def stored(content, form=0):  # SEAL's header: its mark, then whether what follows is as it is or compressed by zlib
        return mark + bytes([form, 0, 0]) + struct.pack("<Q", len(content) + 16) + content

    words = [number] * (polynomials * 8192 * 2)
    header = struct.pack("<4QB3Qd", *level, 1, polynomials, 8192, 2, scale) + struct.pack("<Q", 1)
    data = stored(struct.pack("<Q", len(words)) + struct.pack(f"<{len(words)}Q", *words))
    return field(1, b"\x64") + field(2, stored(zlib.compress(header + data), 1)) + b"\x19" + struct.pack("<d", 2.0**40)


NO_CIPHERTEXT = bytes.fromhex("0a0164")
FORGERIES = {
    "no ciphertext": lambda keys, good: NO_CIPHERTEXT,
    "a ciphertext under another field's number": lambda keys, good: good[:3] + b"\x72" + good[4:],
    "two ciphertexts": lambda keys, good: good[:-9] + good[3:],
    "no polynomial": lambda keys, good: forge(keys, polynomials=0),
    "three polynomials": lambda keys, good: forge(keys, polynomials=3),
    "another scale": lambda keys, good: forge(keys, scale=2.0**20),
    "no number for a scale": lambda keys, good: forge(keys, scale=float("nan")),
    "numbers in the clear": lambda keys, good: forge(keys, number=0),
    "nothing": lambda keys, good: b"",
    "a byte changed within": lambda keys, good: good[:50] + bytes([good[50] ^ 1]) + good[51:],
}


@pytest.fixture(scope="module")
def said_of_forgeries(site, keys, tmp_path_factory):
    """What processes of their own said of all forgeries; one that a native fault ends is followed by another."""
    folder = tmp_path_factory.mktemp("forged")
    good = site.seal(torch.ones(100)).numpy().tobytes()[24:]
    for name, forgery in FORGERIES.items():
        (folder / name).write_bytes(forgery(keys, good))
    left, said = list(FORGERIES), ""
    while left:
        command = [sys.executable, "-c", FORGED, keys, *(folder / name for name in left)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said += done.stdout
        begun = done.stdout.count("begun ")
        assert begun, done.stderr
        if done.returncode:
            said += f"{left[begun - 1]} ended the process: {done.returncode} {done.stderr}\n"
        left = left[begun:]
    return said.splitlines()


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.attack(
    "a hostile site",
    "forged ciphertexts that would end the server's process natively",
    "refused by name",
)
def test_what_would_end_the_servers_process_is_refused(said_of_forgeries, forgery):
    """In another process, which a native fault would end by a signal."""
    said = [line for line in said_of_forgeries if line.startswith(f"{forgery} ")]
    assert len(said) == 2, said
    assert all("tensor 'head.w' holds" in line for line in said), said


def test_a_forged_vector_of_the_right_form_is_taken(server, keys):
    """So that the forgeries above fail for what they change, not for how they are written."""
    body = torch.tensor(list(forge(keys)), dtype=torch.uint8)
    length = torch.tensor(list(len(body).to_bytes(8, "little")), dtype=torch.uint8)
    name = torch.tensor(list((keys / SERVER_FILE).read_bytes()[:16]), dtype=torch.uint8)
    server.require("head.w", torch.cat([name, length, body]), 100)


def test_key_files(keys, tmp_path):
    result = CliRunner().invoke(main, ["kit", "he-keys", str(tmp_path / "made")])
    assert result.exit_code == 0, result.output
    for path in (tmp_path / "made").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert CliRunner().invoke(main, ["kit", "he-keys", str(tmp_path / "made")]).exit_code == 2
    with pytest.raises(DataError, match="is there already"):
        new_keys(keys)
    with pytest.raises(SettingsError, match=f"file of the sites: it needs {SERVER_FILE}"):
        cipher_for(ENCRYPT, keys / SITE_FILE, private=False)
    with pytest.raises(SettingsError, match=f"file of the server: it needs {SITE_FILE}"):
        cipher_for(ENCRYPT, keys / SERVER_FILE, private=True)
    with pytest.raises(SettingsError, match="has no keys"):
        cipher_for(ENCRYPT, None, private=True)
    with pytest.raises(DataError, match="cannot be read"):
        cipher_for(ENCRYPT, tmp_path / "none", private=True)
    assert cipher_for(ExchangeSettings(), None, private=True) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"exchange": {"encrypt": "head"}, "grades": None}, "only a head that travels"),
        ({"quorum": 3, "aggregation": {"rule": "uniform", "robust": {"name": "median"}}}, "'median' compares what the"),
        ({"aggregation": {"rule": "similarity"}}, "'similarity' compares what the"),
        ({"correction": {"name": "scaffold"}}, "controls of the head in the clear"),
    ],
)
def test_what_encryption_excludes_is_refused_in_a_sentence(changed, said):
    Experiment.resolve(WORDS)
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve({**WORDS, **changed})


def test_only_the_head_is_sealed(tiny):
    experiment = tiny(**WORDS)
    parts = partition_of(experiment, build_on_meta(experiment.network, 5))
    assert parts.sealed == tuple(key for key in parts.shared if key.startswith("head."))
    assert parts.sealed


@pytest.mark.attack(
    "a hostile site",
    "a head in the clear where the run encrypts it",
    "refused",
)
def test_a_head_in_the_clear_is_refused(tiny, phantoms, site, server, tmp_path):
    experiment = tiny(**WORDS)
    coordinator = Coordinator(experiment, "r", tmp_path, server)
    coordinator.begin(["site-1"])
    parts = coordinator.partition
    clear = {**coordinator.down(), **{key: torch.zeros(parts.shapes[key]) for key in parts.sealed}}
    with pytest.raises(RefusedError, match="must travel encrypted"):
        coordinator.accept("site-1", Payload(clear, {"theta": 0.5}, coordinator.order("site-1").stamp))
    with pytest.raises(SettingsError, match="has no keys"):
        Coordinator(experiment, "r", tmp_path)
    with pytest.raises(SettingsError, match="has no keys"):
        Site(experiment, phantoms(experiment, "site-1")["site-1"], tmp_path)


@pytest.mark.slow
def test_a_run_with_sealed_heads_ends_as_one_in_the_clear(tiny, phantoms, keys, site, tmp_path):
    sealed, clear = tiny(**WORDS), tiny(grades=5, exchange={"personal": "nothing"})
    data = phantoms(clear, "site-1", "site-4")
    expected = run_loop(clear, data, tmp_path, "clear")
    got = run_loop(sealed, data, tmp_path, "sealed", keys)
    # The first round begins alike to the last bit. The second validates what the first gave, head opened, before it
    # trains; what training makes of the noise of CKKS is chaos, and no promise.
    assert [entry["theta"] for entry in got["steps"][0]["scalars"].values()] == [
        entry["theta"] for entry in expected["steps"][0]["scalars"].values()
    ]
    for name, scalars in expected["steps"][1]["scalars"].items():
        assert got["steps"][1]["scalars"][name]["val_auc"] == pytest.approx(scalars["val_auc"], abs=1e-3)
    for name, experiment in (("sealed-1", sealed), ("clear-1", clear)):
        one = experiment.model_copy(update={"phases": (experiment.phases[0].model_copy(update={"rounds": 1}),)})
        run_loop(one, data, tmp_path, name, keys)
    model, _ = read_tensors(tmp_path / "sealed-1" / "server" / "train-0000.safetensors")
    plain, _ = read_tensors(tmp_path / "clear-1" / "server" / "train-0000.safetensors")
    assert {key for key, value in model.items() if value.dtype == torch.uint8} == {k for k in plain if "head." in k}
    for key, value in plain.items():
        opened = site.open(key, model[key], tuple(value.shape), value.dtype) if "head." in key else model[key]
        assert float((opened - value).norm()) < 1e-5 * float(value.norm()) + 1e-6, key
    assert got["steps"][1]["bytes_up"]["site-1"] > expected["steps"][1]["bytes_up"]["site-1"]
    assert got["steps"][0]["bytes_down"] < got["steps"][1]["bytes_down"]
    assert (tmp_path / "sealed" / "site-1" / "final" / "model.safetensors").exists()
    # Going back: the model of the first round is still encrypted at the server, and what follows it is done anew.
    before = (tmp_path / "sealed" / "server" / "train-0000.safetensors").read_bytes()
    back = sealed.model_copy(update={"restart": RestartSettings(step="train-0001", mark="ab12")})
    again = run_loop(back, data, tmp_path, "sealed", keys)
    assert (tmp_path / "sealed" / "server" / "train-0000.safetensors").read_bytes() == before
    assert again["steps"][0] == got["steps"][0]
    for name, scalars in got["steps"][1]["scalars"].items():
        assert again["steps"][1]["scalars"][name]["val_auc"] == scalars["val_auc"]
    assert set(again["sites"]) == set(got["sites"])
