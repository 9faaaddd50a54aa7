"""A run in which one small site has too few ill patients to promise anything, and draws its threshold."""

import pytest

from fedretina.aggregation.coordinator import Coordinator
from fedretina.data.site_data import load_site_data
from fedretina.evaluation.referral_curve import curve_of_others
from fedretina.local.site import Site
from fedretina.settings.plan import Plan
from fedretina.settings.site import PromiseSettings, SiteDataSettings
from fedretina.storage import read_json

pytestmark = pytest.mark.slow
ASKED = PromiseSettings(missed=0.2, sure=0.8, drawn=True)


def test_a_small_site_draws_its_threshold_and_says_that_it_promises_nothing(tiny, tmp_path):
    experiment = tiny(row="analytic", referral_curve=True)
    data = {}
    for name, images, asked in (
        ("site-1", 24, ASKED),
        ("site-2", 160, PromiseSettings(missed=0.5, sure=0.5, drawn=True)),
        ("site-3", 160, None),
    ):
        limits = {"train": 24, "test": 8}
        settings = SiteDataSettings(phantom_images=images, promise=asked, limit=limits)
        data[name] = load_site_data(name, settings, experiment.images, experiment.seed, tmp_path / "cache" / name)
    hosts = {name: Site(experiment, one, tmp_path / name) for name, one in data.items()}
    orders = {}
    assert [step.task for step in Plan.of(experiment)] == ["sums", "validate", "curve", "finalise"]
    for step in Plan.of(experiment):
        coordinator = Coordinator(experiment, "r", tmp_path / "server")  # as after a kill
        coordinator.begin(data)
        for site in coordinator.asked:
            orders[site, step.task] = coordinator.order(site), coordinator.down(site)
            coordinator.accept(site, hosts[site].handle(*orders[site, step.task]))
        sent = coordinator.close()["scalars"]
        if step.task == "curve":
            told = sent
    # The small site has too few to tell of, and gets the sum of the two others.
    assert told["site-1"] == {}
    order, down = orders["site-1", "finalise"]
    assert order.curve == curve_of_others(told, "site-1") != ()
    assert orders["site-2", "finalise"][0].curve == ()  # it would be site-3's own
    final = tmp_path / "site-1" / "final"
    promise, page = read_json(final / "card.json")["promise"], (final / "card.md").read_text()
    assert promise["reason"] == "drawn"
    assert 0 < promise["threshold"] < 1
    own = promise["patients"]
    share = f"{100 * min(30, sum(order.curve)) / (min(30, sum(order.curve)) + own):.0f}"
    said = (
        f"No promise: {own} ill patients of this site's own stand behind it where 8 are needed; this threshold comes "
        f"for {share} % from the other hospitals' patients."
    )
    assert said in page
    assert said in " ".join(str(one) for one in read_json(final / "report.json").values())
    kept = read_json(tmp_path / "site-2" / "final" / "card.json")["promise"]
    assert kept["reason"] == "kept"
    assert kept.keys() == promise.keys() - {"others", "share"}
    # Asked again it answers from what is stored; with another curve, after the run went back, the card is made anew.
    written = (final / "card.json").stat().st_mtime_ns
    hosts["site-1"].handle(order, down)
    assert (final / "card.json").stat().st_mtime_ns == written
    hosts["site-1"].handle(order._replace(curve=()), down)
    assert read_json(final / "card.json")["promise"]["reason"] == "few_others"
