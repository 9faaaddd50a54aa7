"""Sums that the server does not see: under encryption its total alone, under noise with a budget."""

import math

import pytest
import torch

from fedretina.aggregation.admission import _admit_sums, admit_tensors
from fedretina.aggregation.coordinator import Coordinator
from fedretina.analytic.sums import Sums
from fedretina.errors import RefusedError, SettingsError, TrainingError
from fedretina.exchange.encryption import SERVER_FILE, SITE_FILE, cipher_for, new_keys
from fedretina.exchange.noise import cost, noised_sums, sums_sensitivity
from fedretina.exchange.partition import SUMS, partition_of
from fedretina.exchange.payload import Payload, Stamp, tensors_digest
from fedretina.exchange.policy import apply_policy, require_budget
from fedretina.local.heads_from_sums import HeadsFromSums, SiteNoise, packed
from fedretina.local.site import Site
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.settings.policy import PolicySettings, SumsNoise
from fedretina.storage import read_tensors

SITES = ("site-1", "site-2", "site-3")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
    folder = tmp_path_factory.mktemp("keys")
    new_keys(folder)
    return folder


@pytest.fixture
def analytic(tiny):
    def make(**sums):
        return tiny(row="analytic", phases=[{"name": "sums", "sums": sums}], phantom_images=60)

    return make


def ciphers(experiment, keys):
    return (
        cipher_for(experiment.exchange, keys / file, private=private, sums=experiment.sums)
        for file, private in ((SERVER_FILE, False), (SITE_FILE, True))
    )


@pytest.mark.attack(
    "a hostile server",
    "read one site's sums where the federation has keys",
    "it holds ciphertexts alone, which add up to the total that the sites can open",
)
def test_the_encrypted_total_is_the_plain_one(analytic, phantoms, tmp_path, keys):
    experiment = analytic()
    data = phantoms(experiment, *SITES)
    plain = run_loop(experiment, data, tmp_path, "plain")
    sealed = run_loop(experiment, data, tmp_path, "sealed", keys)
    clear, _ = read_tensors(tmp_path / "plain" / "server" / "sums-0000.safetensors")
    stored, _ = read_tensors(tmp_path / "sealed" / "server" / "sums-0000.safetensors")
    server, site = ciphers(experiment, keys)
    for key, tensor in clear.items():
        assert stored[key].dtype == torch.uint8
        opened = site.open(key, stored[key], tuple(tensor.shape), torch.float64)
        assert float((opened - tensor).abs().max()) <= 1e-6 * float(tensor.abs().max())
        with pytest.raises(ValueError, match="secret_key"):
            server.open(key, stored[key], tuple(tensor.shape), torch.float64)
    assert "weights" not in sealed["steps"][0]  # by images, which the server does not know
    for name in SITES:
        one, other = (
            read_tensors(tmp_path / run / name / "final" / "model.safetensors")[0] for run in ("plain", "sealed")
        )
        torch.testing.assert_close(one["head.0.weight"], other["head.0.weight"], rtol=1e-4, atol=1e-5)
        assert plain["sites"][name]["test_auc"] == sealed["sites"][name]["test_auc"]


def test_ends_with_keys_take_and_send_nothing_in_the_clear(analytic, phantoms, tmp_path, keys):
    experiment = analytic()
    data = phantoms(experiment, "site-1")["site-1"]
    server, own = ciphers(experiment, keys)
    coordinator = Coordinator(experiment, "r", tmp_path / "server", server)
    coordinator.begin(["site-1"])
    order = coordinator.order("site-1")
    with pytest.raises(RefusedError, match="must travel encrypted"):
        coordinator.accept("site-1", Site(experiment, data, tmp_path / "one").handle(order, {}))
    answer = Site(experiment, data, tmp_path / "two", own).handle(order, {})
    assert {tensor.dtype for tensor in answer.tensors.values()} == {torch.uint8}
    forged = {key: tensor.roll(50) for key, tensor in answer.tensors.items()}
    with pytest.raises(RefusedError, match=r"other keys|no ciphertext|length"):
        coordinator.accept("site-1", Payload(forged, {}, answer.stamp))
    coordinator.accept("site-1", answer)
    coordinator.close()
    assert coordinator.records[0]["bytes_up"]["site-1"] == sum(one.numel() for one in answer.tensors.values())
    in_clear = Coordinator(experiment, "r", tmp_path / "other")
    in_clear.begin(["site-1"])
    with pytest.raises(RefusedError, match="has shape"):
        in_clear.accept("site-1", answer)


def opened_counts(experiment, data, folder, cipher, **words):
    """The counts of one site's encrypted sums."""
    coordinator = Coordinator(experiment, "r", folder / "server", cipher)
    coordinator.begin([data.name])
    site = Site(experiment, data, folder / "site", cipher, **words)
    answer = site.handle(coordinator.order(data.name), {})
    return cipher.open(f"{SUMS}counts", answer.tensors[f"{SUMS}counts"], (5,), torch.float64)


@pytest.mark.attack(
    "a hostile site",
    "open the total of an encrypted run and read the features of the only patients that have a grade",
    "a grade of fewer patients than min_count is in no sum, encrypted or not, unless the hospital lets it",
)
def test_grades_of_few_patients_are_in_no_encrypted_sum_unless_the_site_says_so(analytic, phantoms, tmp_path, keys):
    experiment = analytic()
    data = phantoms(experiment, "site-1")["site-1"]
    _, own = ciphers(experiment, keys)
    labels = data.split("train").labels
    few = [grade for grade in range(5) if len(set(patients_of(data, grade))) < data.min_count]
    assert few
    opened = opened_counts(experiment, data, tmp_path / "default", own)
    assert float(opened[few].abs().max()) < 1e-3
    assert float(opened.sum()) == pytest.approx(sum(int(label) not in few for label in labels))
    opened = opened_counts(experiment, data, tmp_path / "all", own, small_grades=True)
    assert opened.round().tolist() == labels.bincount(minlength=5).tolist()
    in_clear = Site(experiment, data, tmp_path / "clear", small_grades=True)  # which it says of encrypted sums alone
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    coordinator.begin(["site-1"])
    sent = in_clear.handle(coordinator.order("site-1"), {}).tensors[f"{SUMS}counts"]
    assert sent[few].tolist() == [0.0] * len(few)
    object.__setattr__(data, "min_count", 1000)
    with pytest.raises(TrainingError, match="no grade of this site has as many patients"):
        opened_counts(experiment, data, tmp_path / "nobody", own, small_grades=True)


def patients_of(data, grade):
    train = data.split("train")
    return [who for who, label in zip(train.patients, train.labels.tolist(), strict=True) if label == grade]


def test_a_run_that_must_be_encrypted_is_not_begun_without_keys(analytic, phantoms, tmp_path, keys):
    experiment = analytic(encrypt="always")
    with pytest.raises(SettingsError, match="this end has no keys"):
        run_loop(experiment, phantoms(experiment, "site-1"), tmp_path, "r")
    run_loop(experiment, phantoms(experiment, "site-1"), tmp_path, "r", keys)


def test_the_most_that_a_patient_changes_is_bounded_and_met():
    """Brute force over images of the greatest length: the bound holds, and one on an axis comes near it."""
    generator = torch.Generator().manual_seed(0)
    length = math.sqrt(7.0)
    bound = sums_sensitivity(length)
    norms = []
    for at in range(200):
        images = 1 + at % 4  # of one patient
        phi = torch.randn(images, 7, generator=generator, dtype=torch.float64)
        phi = phi / phi.norm(dim=1, keepdim=True) * length
        if at == 0:
            phi = torch.zeros(1, 7, dtype=torch.float64)
            phi[0, 0] = length
        shares = torch.rand(images, 3, generator=generator, dtype=torch.float64)
        shares = shares / shares.sum(1, keepdim=True) if at else torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
        parts = Sums.of(phi, shares / images, at % 2 == 0).packed().values()
        norms.append(math.sqrt(sum(float((part**2).sum()) for part in parts)))
    assert max(norms) <= bound * (1 + 1e-9)
    assert norms[0] == pytest.approx(bound)


def drawn(images, by_class=False):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (images,), generator=generator)
    phi = torch.randn(images, 6, generator=generator, dtype=torch.float64)
    phi[:, -1] = 1
    return Sums.of(phi, torch.nn.functional.one_hot(labels, 3).double(), by_class)


def test_noised_sums_are_those_of_some_images_and_as_noisy_as_is_paid_for():
    sums, noise = drawn(20_000), SumsNoise(multiplier=1.5)
    found = [noised_sums(sums, noise, math.sqrt(6), bytes([at] * 32)) for at in range(60)]
    spread = torch.stack([one.packed()["first"] - sums.first for one in found]).std()
    assert float(spread) == pytest.approx(1.5 * sums_sensitivity(math.sqrt(6)), rel=0.05)
    again = noised_sums(sums, noise, math.sqrt(6), bytes([0] * 32))
    assert torch.equal(again.second, found[0].second)  # sent twice, the same
    for by_class in (False, True):  # noise as large as the sums: what leaves is admitted all the same
        few = drawn(300, by_class)
        loud = [noised_sums(few, SumsNoise(multiplier=2), math.sqrt(6), bytes([at] * 32)) for at in range(20)]
        for one in loud:
            _admit_sums(one.packed())
        assert all(not bool(one.first[one.counts == 0].any()) for one in loud)
    assert cost(noise).rho == pytest.approx(1 / (2 * 1.5**2))


def noisy_run(experiment, data, folder, multiplier):
    """A run of one site that adds noise."""
    noise = SiteNoise(SumsNoise(multiplier=multiplier), bytes(32))
    site = Site(experiment, data, folder / "site-1", noise=noise)
    coordinator = Coordinator(experiment, "r", folder / "server")
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(["site-1"])
        order, down = coordinator.order("site-1"), coordinator.down("site-1")
        answer = site.handle(order, down)
        assert all(torch.equal(tensor, site.handle(order, down).tensors[key]) for key, tensor in answer.tensors.items())
        coordinator.accept("site-1", answer)
        coordinator.close()
    return read_tensors(folder / "server" / "sums-0000.safetensors")[0]


def test_a_site_adds_its_noise_before_anything_leaves(analytic, phantoms, tmp_path):
    experiment = analytic(bound=3.0, features=8)
    data = phantoms(experiment, "site-1")["site-1"]
    quiet, loud = (noisy_run(experiment, data, tmp_path / str(z), z) for z in (1e-9, 2.0))
    patients = len(set(data.split("train").patients))
    assert float(quiet[f"{SUMS}counts"].sum()) == pytest.approx(patients, abs=1e-5)  # each counts once
    phi = quiet[f"{SUMS}first"]
    assert float(phi.norm()) <= patients * 3 + 1e-6
    apart = loud[f"{SUMS}first"] - quiet[f"{SUMS}first"]
    kept = loud[f"{SUMS}counts"] > 0
    assert float(apart[kept].std()) == pytest.approx(2 * sums_sensitivity(3.0), rel=0.5)
    with pytest.raises(TrainingError, match="the job must bound each image"):
        HeadsFromSums(analytic(), data, SiteNoise(SumsNoise(multiplier=1), bytes(32))).sums()


def test_noised_sums_are_the_same_release_however_often_they_are_sealed(analytic, phantoms, tmp_path, keys):
    experiment = analytic(bound=3.0, features=8)
    data = phantoms(experiment, "site-1")["site-1"]
    server, cipher = ciphers(experiment, keys)
    noise = SiteNoise(SumsNoise(multiplier=5.0), bytes(32))
    clear = Site(experiment, data, tmp_path / "clear", noise=noise)
    coordinator = Coordinator(experiment, "r", tmp_path / "server", server)
    coordinator.begin(["site-1"])
    order = coordinator.order("site-1")
    plain = clear.handle(order, {})
    answers = []
    for _ in range(2):  # a site that starts anew
        site = Site(experiment, data, tmp_path / "sealed", cipher, noise)
        answers += [site.handle(order, {}), site.handle(order, {})]
    assert len({tensors_digest(answer.tensors) for answer in answers}) == len(answers)
    assert {answer.release for answer in answers} == {tensors_digest(plain.tensors)}
    assert plain.release == ""
    other = Site(experiment, data, tmp_path / "other", cipher, noise._replace(key=bytes([1] * 32)))
    assert other.handle(order, {}).release != answers[0].release


def test_the_filter_charges_the_budget_and_refuses_what_it_cannot_make_safe():
    stamp = Stamp("r", "sums", 0, 0, "d")
    payload = Payload(packed(drawn(50)), {}, stamp)

    def applied(**words):
        return apply_policy(PolicySettings.model_validate(words), payload, {}, lambda: bytes(32), lambda *_: {})

    noise = {"multiplier": 2.0, "max_epsilon": 3.0}
    leaving, done = applied(sums_noise=noise)
    assert leaving.tensors == payload.tensors  # the noise is in them since the site formed them
    assert done["privacy"] == {"kind": "sums", "multiplier": 2.0, "delta": 1e-5, "rho": 0.125}
    assert applied()[1] == {}
    gaussian = {"kind": "gaussian", "clip": 1.0, "multiplier": 1.0}
    assert applied(sums_noise=noise, noise=gaussian)[1]["privacy"]["kind"] == "sums"
    with pytest.raises(RefusedError, match=r"policy\.sums_noise"):
        applied(noise=gaussian)
    with pytest.raises(RefusedError, match="mantissa_bits"):
        applied(mantissa_bits=7)
    policy = PolicySettings.model_validate({"sums_noise": noise})
    lines = [{"digest": "a", "privacy": {"rho": 0.125}}]
    assert require_budget(policy, [], "a", sums=True) == pytest.approx(2.524, abs=1e-3)
    with pytest.raises(RefusedError, match="budget is spent"):
        require_budget(policy, lines, "b", sums=True)
    assert require_budget(policy, lines, "a", sums=True) > 0  # sent again


def test_what_an_end_with_keys_admits(analytic):
    experiment = analytic()
    net = build_on_meta(experiment.network)
    parts = partition_of(experiment, net, encrypted=True)
    assert parts.sealed == parts.sums
    assert experiment.digest(parts) == experiment.digest(partition_of(experiment, net))
    with pytest.raises(RefusedError, match="must travel encrypted"):
        admit_tensors(packed(drawn(9)), parts, parts.sums)
