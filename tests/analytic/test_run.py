"""A run of sums from its first order to a site's model, in the plain loop."""

import copy
import csv
from dataclasses import replace

import pytest
import torch
from scipy.special import log_softmax

from fedretina.aggregation.coordinator import Coordinator
from fedretina.analytic.answer import Scaling, class_shares
from fedretina.analytic.features import FeatureMap, projection
from fedretina.analytic.ridge import solve
from fedretina.analytic.sums import total
from fedretina.api import load_site
from fedretina.data.phantoms.draw import write_hospital
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.site_data import Split
from fedretina.errors import DataError, QuorumError, RefusedError, SettingsError, TrainingError
from fedretina.exchange.partition import SUMS
from fedretina.exchange.payload import Payload
from fedretina.local.features import FrozenEncoder
from fedretina.local.heads_from_sums import HeadsFromSums, packed, unpacked
from fedretina.local.site import Site
from fedretina.loop import run_loop
from fedretina.storage import read_json, read_tensors
from killed import killed_at_every_write

SITES = ("site-1", "site-2", "site-3")  # of 5, 4 and 6 grades; the sixth is "ungradable"
COVERS = ((0,), (1,), (2,), (3,), (4,)), ((0,), (1,), (2,), (3, 4)), ((0,), (1,), (2,), (3,), (4,), ())


@pytest.fixture
def analytic(tiny):
    def make(sums=None, **words):
        return tiny(row="analytic", phases=[{"name": "sums", "sums": sums or {}}], **{"phantom_images": 60, **words})

    return make


def results(root, run):
    found = read_json(root / run / "server" / "results.json")
    return {key: value for key, value in found.items() if key != "run"}


def test_one_message_up_one_down_and_a_model_at_each_site(analytic, phantoms, tmp_path):
    experiment = analytic()
    data = phantoms(experiment, *SITES)
    found = run_loop(experiment, data, tmp_path, "r")
    assert [step["step"] for step in found["steps"]] == ["sums-0000", "validate-0000"]
    assert found["partition"] == {"sums": [f"{SUMS}counts", f"{SUMS}first", f"{SUMS}second"]}
    parts = {name: HeadsFromSums(experiment, data[name]).sums()[0] for name in SITES}
    stored, _ = read_tensors(tmp_path / "r" / "server" / "sums-0000.safetensors")
    added = packed(total(reversed(parts.items())))
    assert {key: torch.equal(stored[key], added[key]) for key in stored} == dict.fromkeys(added, True)
    assert set(found["steps"][0]["scalars"]["site-1"]) == set()
    assert sum(found["steps"][0]["weights"].values()) == pytest.approx(1)
    for name, grades in zip(SITES, (5, 4, 6), strict=True):
        final = tmp_path / "r" / name / "final"
        model, _ = read_tensors(final / "model.safetensors")
        start = Site(experiment, data[name], tmp_path / "other" / name).trainer.initial().tensors
        assert model["head.0.weight"].shape == (grades, 32)
        assert all(torch.equal(model[key], start[key]) for key in start if key.startswith("encoder."))
        card = read_json(final / "card.json")
        assert card["chosen"] == "sums-0000"
        assert card["sums"]["answer"] == "both"
        page = (final / "card.md").read_text()
        assert "beside those of the other sites" in page
        assert "the mean of the two, which the job asks for" in page


def test_the_folded_layer_answers_as_the_heads_that_it_was_made_of(analytic, phantoms):
    """Own, federated and both, by hand from features, shares and the total, against the layer on the network."""
    experiment = analytic({"features": 12})
    data = phantoms(experiment, *SITES)
    sites = {name: HeadsFromSums(experiment, data[name]) for name in SITES}
    summed = {name: site.sums() for name, site in sites.items()}
    whole = total((name, sums) for name, (sums, _) in summed.items())
    for name, cover in zip(SITES, COVERS, strict=True):
        train, val = (FrozenEncoder(experiment, data[name]).features(data[name].split(at)) for at in ("train", "val"))
        mean, spread = train.double().mean(0), train.double().var(0, correction=0).mean().sqrt()
        phi = torch.cat([(val - mean) / spread @ projection(32, 12, 3), torch.ones(len(val), 1)], 1).double()
        head = sites[name].federated(whole)
        shared = phi @ head.weight + head.prior
        kept = summed[name][1]
        own = phi @ kept.tensors["own.weight"] + kept.tensors["own.prior"]
        grades = [shared[:, list(of)].sum(1) if of else own[:, at] for at, of in enumerate(cover)]
        scores = {"own": own, "federated": torch.stack(grades, 1)}
        scores["both"] = (scores["own"] + scores["federated"]) / 2
        losses = {}
        for answer, slow in scores.items():
            chosen = HeadsFromSums(analytic({"features": 12, "answer": answer}), data[name]).answer(whole, kept)
            scaled = Scaling.fitted(slow, data[name].split("val").labels)
            logits = val @ chosen.head.weight.T + chosen.head.bias
            torch.testing.assert_close(logits.double(), scaled.scale * slow + scaled.shift, rtol=0, atol=1e-3)
            log = log_softmax(logits.numpy(), axis=1)
            losses[answer] = -log[range(len(log)), data[name].split("val").labels].mean()
            assert chosen.record["validation_nll"][answer] == pytest.approx(losses[answer], abs=1e-4)
        best = HeadsFromSums(analytic({"features": 12, "answer": "validation"}), data[name]).answer(whole, kept).record
        assert losses[best["answer"]] == pytest.approx(min(losses.values()), abs=1e-4)


@pytest.mark.parametrize("order", [SITES, SITES[::-1]])
def test_the_order_of_arrival_changes_no_bit_and_a_repeat_is_equal(order, analytic, phantoms, tmp_path):
    experiment = analytic({"balance": True})
    data = phantoms(experiment, *SITES)
    run_loop(experiment, data, tmp_path, "loop")
    coordinator = Coordinator(experiment, "loop", tmp_path / "server")
    sites = {name: Site(experiment, data[name], tmp_path / name) for name in SITES}
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(SITES)
        for name in order:
            asked = coordinator.order(name), coordinator.down(name)
            answer, again = sites[name].handle(*asked), sites[name].handle(*asked)
            assert all(torch.equal(answer.tensors[key], again.tensors[key]) for key in answer.tensors)
            coordinator.accept(name, answer)
        coordinator.close()
    assert read_json(tmp_path / "server" / "results.json") == read_json(tmp_path / "loop" / "server" / "results.json")


@pytest.mark.slow
def test_a_run_of_sums_killed_at_every_write_ends_with_the_same_bits(analytic, phantoms, tmp_path):
    experiment = analytic()
    data = phantoms(experiment, "site-1", "site-2")
    run_loop(experiment, data, tmp_path, "whole")
    of_site_2 = tmp_path / "cut" / "site-2"  # whose writes are those of site-1
    _, deaths = killed_at_every_write(
        lambda: run_loop(experiment, data, tmp_path, "cut"),
        tmp_path / "cut",
        lambda path: of_site_2 not in path.parents,
    )
    assert deaths > 30
    assert results(tmp_path, "cut") == results(tmp_path, "whole")
    for site in data:
        whole, cut = (read_json(tmp_path / run / site / "final" / "figures.json") for run in ("whole", "cut"))
        assert whole == cut


@pytest.mark.attack(
    "a hostile server",
    "read the mean features of few patients off a site's sums in the clear",
    "a grade of fewer patients than min_count is in no sum, and a site with no other sends none",
)
def test_grades_of_few_patients_are_in_no_sum(analytic, phantoms, tmp_path):
    experiment = analytic()
    data = phantoms(experiment, *SITES)
    train = data["site-3"].split("train")
    seen = set(zip(train.patients, train.labels.tolist(), strict=True))
    told = [grade for grade in range(5) if sum(label == grade for _, label in seen) >= 5]
    assert 0 < len(told) < 5
    sums, _ = HeadsFromSums(experiment, data["site-3"]).sums()
    assert sums.counts.nonzero().flatten().tolist() == told
    assert float(sums.counts.sum()) == sum(int(label) in told for label in train.labels)
    few = copy.copy(data["site-3"])
    object.__setattr__(few, "min_count", 1000)
    with pytest.raises(TrainingError, match="no grade of this site has as many patients") as caught:
        HeadsFromSums(experiment, few).sums()
    assert "1000" not in str(caught.value)  # goes to the server; how few there are does not
    found = run_loop(experiment, {**data, "site-3": few}, tmp_path, "r")
    assert list(found["steps"][0]["refused"]) == ["site-3"]
    assert sorted(found["sites"]) == ["site-1", "site-2"]
    assert found["without_result"]["site-3"] == str(caught.value)  # also at the end it hears why, and what to do


@pytest.mark.attack(
    "a hostile server",
    "compute the features of images that are in no sum from the mean that the sums are centred by",
    "whatever these images show, the same bits leave",
)
@pytest.mark.parametrize("sums", [{}, {"balance": True}, {"bound": 3.0, "features": 8}], ids=str)
def test_what_is_in_no_sum_changes_no_bit_of_the_message(sums, analytic, phantoms):
    experiment = analytic(sums)
    data = phantoms(experiment, "site-3")["site-3"]
    train = data.split("train")
    told = HeadsFromSums(experiment, data).sums()[0].counts.nonzero().flatten()
    withheld = ~torch.isin(train.labels, told)
    assert set(train.labels[withheld].tolist()) == {*range(6)} - set(told.tolist())  # the ungradable among them
    black = train.images.clone()
    black[withheld] = 0
    other = replace(data, features=None, _read={"train": train._replace(images=black, digests=())}.__getitem__)
    before, after = (packed(HeadsFromSums(experiment, site).sums()[0]) for site in (data, other))
    assert {key: torch.equal(before[key], after[key]) for key in before} == dict.fromkeys(before, True)


def without(site, grade):
    """A site that has no training image of a grade."""
    train = site.split("train")
    rows = (train.labels != grade).nonzero().flatten().tolist()
    patients, files, digests = (
        tuple(of[row] for row in rows) for of in (train.patients, train.files, train.pixel_digests())
    )
    splits = {name: site.split(name) for name in ("val", "test")}
    splits["train"] = Split(train.images[rows], train.labels[rows], patients, files, digests)
    return replace(site, _read=splits.__getitem__, counts={**site.counts, "train": len(rows)})


def test_the_number_of_few_patients_images_does_not_follow_from_the_counts(analytic, phantoms, tmp_path):
    experiment = analytic()
    data = phantoms(experiment, *SITES)
    object.__setattr__(data["site-2"], "min_count", 1)  # all of its images are in its sums
    data["site-1"] = without(data["site-1"], 4)
    found = run_loop(experiment, data, tmp_path, "r")
    behind = {}
    for name, site in data.items():
        train, counted = site.split("train"), HeadsFromSums(experiment, site).sums()[0].counts.nonzero().flatten()
        rest = [who for who, at in zip(train.patients, train.labels, strict=True) if at not in counted]
        behind[name] = len(set(rest)) if name != "site-2" else 0
        told = behind[name] == 0 or behind[name] >= site.min_count
        expected = {"images_train": len(train.labels)} if told else {}
        assert {key: value for key, value in found["sites"][name].items() if key == "images_train"} == expected
        assert found["sites"][name]["images_val"] == site.counts["val"]
    assert 0 < behind["site-1"] < 5
    assert behind["site-3"] >= 5


def test_a_grade_of_two_classes_gives_each_its_share(analytic, phantoms):
    shares = class_shares(torch.tensor([0, 1, 3, 3]), COVERS[1], 5, None)
    assert shares.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0.5, 0.5], [0, 0, 0, 0.5, 0.5]]
    assert class_shares(torch.tensor([3]), COVERS[1], 5, (9, 9, 9, 3, 1)).tolist() == [[0, 0, 0, 0.75, 0.25]]
    assert class_shares(torch.tensor([5]), COVERS[2], 5, None).tolist() == [[0.0] * 5]
    experiment = analytic({"shares": [5, 1, 2, 3, 1]})
    site = phantoms(experiment, "site-2")["site-2"]
    object.__setattr__(site, "min_count", 2)
    counts = HeadsFromSums(experiment, site).sums()[0].counts
    assert float(counts[3] / counts[4]) == pytest.approx(3)


def test_alone_the_federated_head_is_the_own_head_of_equal_strength(analytic, phantoms):
    experiment = analytic()
    site = phantoms(experiment, "site-1")["site-1"]
    object.__setattr__(site, "min_count", 1)
    sums, kept = HeadsFromSums(experiment, site).sums()
    alone = solve(total([("site-1", sums)]).totals(), kept.record["own_strength"])
    assert torch.equal(alone.weight, kept.tensors["own.weight"])
    assert torch.equal(alone.prior, kept.tensors["own.prior"])


def test_the_projection_is_the_same_on_every_machine():
    drawn = projection(5, 3, 7)
    assert (drawn * 5**0.5).round().tolist() == [[1, -1, 1], [-1, -1, 1], [1, 1, 1], [-1, -1, 1], [1, 1, -1]]
    assert projection(5, 5, 7) is None
    drawn = FeatureMap.of_site(torch.tensor([[1.0, 5.0], [5.0, 5.0]]), 3, 0)
    assert drawn(torch.tensor([[1.0, 5.0]]))[0].tolist() == pytest.approx([-(2**0.5), 0, 1])  # mean variance 1
    assert FeatureMap.of_site(torch.full((9, 2), 0.1), 3, 0).scale == 1  # nothing but rounding varies


def hostile(tensors, name):
    """Sums that no images have."""
    sums = {key: tensor.clone() for key, tensor in tensors.items()}
    counts, first, second = (sums[f"{SUMS}{part}"] for part in ("counts", "first", "second"))
    if name == "negative":
        second.neg_()
    elif name == "counts":
        counts.sub_(1e6)
    elif name == "first":
        first.mul_(50)
    elif name == "nobody":
        counts.zero_(), first.zero_(), second.zero_()
    elif name == "nan":
        first[0, 0] = torch.nan
    elif name == "one_class":  # positive in all, but not where a site weighs classes
        moved = second[0].clone()
        second[0] += moved
        second[1] -= moved
    elif name == "absurd":
        second.mul_(1e19)
    else:
        sums[f"{SUMS}second"] = second.float()
    return sums


HOSTILE = {
    "negative": "not positive",
    "counts": "not negative",
    "first": "not positive",
    "one_class": "not positive",
    "nobody": "count 0 images",
    "nan": "not finite",
    "absurd": "at most 1e",
    "float32": "has type",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.attack("a hostile site", "sums that no images have", "refused by name, and the others' total counts")
def test_sums_of_no_images_are_refused(name, analytic, phantoms, tmp_path):
    experiment = analytic({"balance": name == "one_class"})
    data = phantoms(experiment, "site-1", "site-2")
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    coordinator.begin(data)
    answers = {
        site: Site(experiment, data[site], tmp_path / site).handle(coordinator.order(site), coordinator.down(site))
        for site in data
    }
    sound = answers["site-2"]
    with pytest.raises(RefusedError, match=HOSTILE[name]):
        coordinator.accept("site-2", Payload(hostile(sound.tensors, name), {}, sound.stamp))
    coordinator.accept("site-1", answers["site-1"])
    assert list(coordinator.close()["refused"]) == ["site-2"]


def test_a_total_that_gives_no_head_stops_the_site_with_a_sentence(analytic, phantoms):
    experiment = analytic()
    site = HeadsFromSums(experiment, phantoms(experiment, "site-1")["site-1"])
    sums, kept = site.sums()
    damaged = packed(sums)
    damaged[f"{SUMS}second"] = -damaged[f"{SUMS}second"]
    with pytest.raises(TrainingError, match="no head follows from the sums of all sites"):
        site.answer(unpacked(damaged), kept)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"network": {"head": {"layout": "linear_bn_relu_linear"}}}, "one linear layer"),
        ({"network": {"exits": {"width": 8}}}, "network.exits"),
        ({"exchange": {"personal": "head"}}, "'everything'"),
        ({"correction": "fedprox"}, "trains nothing"),
        ({"tune": {"epochs": 1}}, "trains nothing"),
        ({"aggregation": {"rule": "uniform", "robust": "median"}, "quorum": 3}, "never weighed"),
        ({"evaluation": {"estimator": "evidence"}}, "answer by softmax"),
        ({"classes": None}, "name them under classes"),
        ({"phases": [{"name": "sums", "sums": {"shares": [1, 2]}}]}, "2 weights for 5 classes"),
        ({"phases": [{"name": "sums", "sums": {"shares": [1, 2, 0, 1, 1]}}]}, "a weight above 0"),
        ({"phases": [{"name": "sums", "rounds": 2}]}, "takes 1 round"),
        ({"phases": [{"name": "sums", "label_share": 0.5}]}, "does not read label_share"),
        ({"phases": [{"name": "sums"}, {"name": "train"}]}, "only one"),
    ],
    ids=lambda words: "-".join(words) if isinstance(words, dict) else "",
)
def test_what_sums_do_not_read_is_refused(words, said, tiny):
    with pytest.raises(SettingsError, match=said):
        tiny(row="analytic", **words)


def test_a_site_whose_training_images_have_one_grade_takes_part(analytic, tiny, phantoms, tmp_path):
    experiment = analytic(verdict="own")
    write_hospital("site-4", phantom_hospital("site-4", 40), tmp_path / "h", 48, 3)
    manifest = tmp_path / "h" / "manifest.csv"
    with manifest.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    healthy = next(row["label"] for row in rows if row["split"] == "train")
    with manifest.open("w", newline="") as lines:
        written = csv.DictWriter(lines, rows[0].keys())
        written.writeheader()
        written.writerows({**row, "label": healthy} if row["split"] == "train" else row for row in rows)
    place = ("site-4", experiment, tmp_path / "h" / "site.yaml", tmp_path / "cache")
    data = {**phantoms(experiment, "site-1"), "site-4": load_site(*place)}
    found = run_loop(experiment, data, tmp_path / "runs", "r")
    assert sorted(found["sites"]) == ["site-1", "site-4"]
    assert (tmp_path / "runs" / "r" / "site-4" / "final" / "card.json").exists()
    with pytest.raises(DataError, match="a network cannot learn"):
        load_site("site-4", tiny(), *place[2:])


@pytest.mark.parametrize(
    ("broken", "said"), [("train", "the sums of this site cannot be formed"), ("val", "this site cannot be scaled")]
)
def test_a_feature_that_is_not_finite_costs_one_site_and_not_the_run(
    broken, said, analytic, phantoms, tmp_path, monkeypatch
):
    experiment = analytic()
    data = phantoms(experiment, "site-1", "site-2")
    damaged, whole = data["site-2"].split(broken).files, FrozenEncoder.features

    def features(self, split):
        found = whole(self, split)
        return torch.full_like(found, torch.nan) if split.files == damaged else found

    monkeypatch.setattr(FrozenEncoder, "features", features)
    found = run_loop(experiment, data, tmp_path, "r")
    refused = {site: why for step in found["steps"] for site, why in step.get("refused", {}).items()}
    assert list(refused) == ["site-2"]
    assert said in refused["site-2"]
    assert list(found["sites"]) == ["site-1"]
    assert "site-2" in found["without_result"]


def test_below_the_quorum_no_total_is_formed(analytic, phantoms, tmp_path):
    experiment = analytic(quorum=3)
    with pytest.raises(QuorumError, match="the quorum is 3"):
        run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, "r")
    assert not (tmp_path / "r").exists()


def test_grades_of_other_names_are_told_so(analytic, phantoms, tmp_path):
    experiment = analytic(classes=["healthy", "ill"])
    with pytest.raises(QuorumError, match="site-1: no grade of this site stands for any"):
        run_loop(experiment, phantoms(experiment, "site-1"), tmp_path, "r")
    experiment = analytic(classes=["no_dr", "mild", "moderate", "severe"])
    with pytest.raises(QuorumError, match="do not fit the classes"):  # site-2 covers "proliferative"
        run_loop(experiment, phantoms(experiment, "site-2"), tmp_path, "r")
