"""Heads from sums: equal to what all images together give, equal to slow forms, and refused where they cannot be."""

import pytest
import torch
from scipy.stats import multivariate_normal

from fedretina.analytic.distance import ClassDistance
from fedretina.analytic.ridge import leave_one_out, likeliest, log_evidence, own_head, solve
from fedretina.analytic.sums import Sums, total
from fedretina.errors import DataError

CLASSES, D = 3, 6


def drawn(images, seed=0, classes=CLASSES, d=D):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (images,), generator=generator)
    features = torch.randn(images, d, generator=generator, dtype=torch.float64)
    features[:, :classes] += 1.5 * torch.nn.functional.one_hot(labels, classes)
    features[:, -1] = 1.0
    return features, torch.nn.functional.one_hot(labels, classes).double()


@pytest.mark.parametrize("by_class", [True, False])
def test_sums_of_sites_solve_to_the_pooled_solution(by_class):
    features, shares = drawn(90)
    parts = [
        (site, Sums.of(features[at], shares[at], by_class))
        for site, at in (("a", slice(0, 10)), ("b", slice(10, 50)), ("c", slice(50, 90)))
    ]
    head = solve(total(parts).totals(), 2.0)
    prior = shares.mean(0)
    pooled = torch.linalg.solve(features.T @ features + 2.0 * torch.eye(D), features.T @ (shares - prior))
    assert torch.allclose(head.weight, pooled, rtol=0, atol=1e-9)
    assert torch.allclose(head.scores(features), features @ pooled + prior, rtol=0, atol=1e-9)
    for order in ((2, 0, 1), (1, 2, 0)):  # no bit depends on who was first
        assert torch.equal(solve(total([parts[at] for at in order]).totals(), 2.0).weight, head.weight)


def test_weighed_classes_count_as_if_their_images_came_so_often():
    features, shares = drawn(60)
    often = torch.tensor([3.0, 1.0, 2.0])
    repeats = often[shares.argmax(1)].long()
    repeated = Sums.of(features.repeat_interleave(repeats, 0), shares.repeat_interleave(repeats, 0), False)
    weighed = Sums.of(features, shares, True).totals(often)
    for name in ("gram", "cross", "prior"):
        assert torch.allclose(getattr(weighed, name), getattr(repeated.totals(), name), atol=1e-9)
    assert weighed.power == pytest.approx(repeated.totals().power)
    balanced = Sums.of(features, shares, True)
    assert torch.allclose(balanced.totals(balanced.balance()).prior, torch.full((CLASSES,), 1 / 3, dtype=torch.float64))


def test_a_grade_that_stands_for_two_classes_gives_each_its_share():
    features, shares = drawn(20)
    mixed = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64)
    whole = Sums.of(features[:1], mixed, True)
    parts = [Sums.of(features[:1], row.unsqueeze(0), True) for row in torch.diag(mixed[0])]
    assert torch.allclose(whole.second, sum(part.second for part in parts))
    ungradable = Sums.of(features, torch.zeros_like(shares), True)
    assert float(ungradable.counts.sum()) == float(ungradable.second.abs().sum()) == 0.0
    with pytest.raises(DataError, match="no image"):
        ungradable.totals()


def test_the_evidence_is_the_likelihood_of_the_labels():
    """Against the dense Gaussian of the labels, at the noise level that makes them likeliest."""
    features, shares = drawn(25)
    totals = Sums.of(features, shares, False).totals()
    target = shares - shares.mean(0)
    strengths = torch.tensor([0.3, 2.0, 40.0], dtype=torch.float64)
    slow = []
    for strength in strengths:
        kernel = torch.eye(25, dtype=torch.float64) + features @ features.T / strength
        noise = float((target * torch.linalg.solve(kernel, target)).sum()) / target.numel()
        law = multivariate_normal(mean=None, cov=(noise * kernel).numpy())
        slow.append(sum(law.logpdf(column.numpy()) for column in target.T))
    fast = log_evidence(totals)(strengths)
    assert torch.allclose(fast - fast[0], torch.tensor(slow, dtype=torch.float64) - slow[0], atol=1e-6)
    best = likeliest(totals)
    around = torch.tensor([best.strength * factor for factor in (0.9, 1.0, 1.1)], dtype=torch.float64)
    assert int(log_evidence(totals)(around).argmax()) == 1


@pytest.mark.parametrize("images", [40, 4])  # fewer images than features too
def test_leaving_one_out_is_solving_without_it(images):
    features, shares = drawn(images)
    strengths = torch.tensor([0.5, 10.0], dtype=torch.float64)
    fast = leave_one_out(features, shares, strengths)
    for at, strength in enumerate(strengths):
        for one in range(images):
            rest = [other for other in range(images) if other != one]
            mean, prior = features[rest].mean(0), shares[rest].mean(0)  # what centres is learned without it, too
            phi, target = features[rest] - mean, shares[rest] - prior
            weight = torch.linalg.solve(phi.T @ phi + strength * torch.eye(D), phi.T @ target)
            assert torch.allclose(fast[at, one], (features[one] - mean) @ weight + prior, atol=1e-9)


def test_fewer_centred_images_than_features_do_not_tell_on_each_other():
    """What is centred sums to 0: the others' sum is the image left out, unless the centre is learned without it."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 60, generator=generator, dtype=torch.float64)
    features = torch.cat([features - features.mean(0), torch.ones(20, 1)], 1)
    shares = torch.nn.functional.one_hot(torch.randint(2, (20,), generator=generator), 2).double()
    weakest, strongest = leave_one_out(features, shares, torch.tensor([1e-3, 1e6], dtype=torch.float64))
    error, nothing = (float(((found - shares) ** 2).sum()) for found in (weakest, strongest))
    assert error > 0.5 * nothing  # labels that no feature tells


def test_alone_the_federated_head_is_the_own_head_of_equal_strength():
    features, shares = drawn(30)
    totals = total([("a", Sums.of(features, shares, False))]).totals()
    own = own_head(features, shares, totals)
    assert torch.equal(solve(totals, own.strength).weight, own.weight)


def test_a_site_of_one_class_and_a_class_that_nobody_has():
    features, _ = drawn(12)
    one = torch.nn.functional.one_hot(torch.full((12,), 1), CLASSES).double()
    sums = Sums.of(features, one, True)
    head = likeliest(sums.totals())
    assert torch.isfinite(head.weight).all()
    assert torch.equal(head.scores(features).argmax(1), torch.full((12,), 1))
    weights = sums.balance()
    assert torch.equal(weights, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))


def test_what_travels_is_the_upper_triangle_and_comes_back_whole():
    features, shares = drawn(15)
    for by_class in (True, False):
        sums = Sums.of(features, shares, by_class)
        packed = sums.packed()
        assert packed["second"].shape == (CLASSES if by_class else 1, D * (D + 1) // 2)
        back = Sums.unpacked(packed)
        assert torch.equal(back.second, sums.second)
        assert torch.equal((total([("a", sums), ("b", sums)]) - sums).first, sums.first)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda words: words.pop("counts"), "missing"),
        (lambda words: words.update(counts=words["counts"] - 100), "not negative"),
        (lambda words: words.update(first=words["first"] * torch.nan), "finite"),
        (lambda words: words.update(second=words["second"][:, :-1]), "do not fit"),
        (lambda words: words.update(first=words["first"][0]), r"counts \[C\]"),
    ],
    ids=["missing", "negative", "nan", "short", "flat"],
)
def test_sums_that_cannot_be_are_refused(damage, said):
    words = Sums.of(*drawn(15), False).packed()
    damage(words)
    with pytest.raises(DataError, match=said):
        Sums.unpacked(words)


def test_sums_of_no_features_are_not_solved():
    sums = Sums.of(*drawn(15), False)
    with pytest.raises(DataError, match="not those of features"):
        solve(Sums(sums.counts, sums.first, -sums.second).totals(), 1.0)
    with pytest.raises(DataError, match="weighed"):
        sums.totals(torch.ones(CLASSES))
    with pytest.raises(DataError, match="finite"):
        Sums.of(torch.full((1, D), torch.inf), torch.ones(1, 1), False)


def test_the_distance_is_mahalanobis_to_the_nearest_class_and_knows_another_kind():
    features, shares = drawn(300)
    sums = Sums.of(features[:, :-1], shares, False)
    distance = ClassDistance.of(sums, shrink=1e-9)
    labels = shares.argmax(1)
    means = torch.stack([features[labels == label, :-1].mean(0) for label in range(CLASSES)])
    centred = features[:, :-1] - means[labels]
    inverse = torch.linalg.inv(centred.T @ centred / (300 - CLASSES))
    apart = features[:, None, :-1] - means
    slow = torch.einsum("ncd,de,nce->nc", apart, inverse, apart).min(1).values
    assert torch.allclose(distance(features[:, :-1]), slow, rtol=1e-5)
    assert float(distance(features[:, :-1] + 30).min()) > float(distance(features[:, :-1]).max())
    with pytest.raises(DataError, match="two images"):
        ClassDistance.of(Sums.of(features[:1, :-1], shares[:1], False))
