"""How many files a reader opens who follows a photograph to the loss, or an update to its commit."""

import sys
import threading
from pathlib import Path

import fedretina
from fedretina import draw_site
from fedretina.aggregation.coordinator import Coordinator
from fedretina.data.site_data import load_site_data
from fedretina.local.site import Site
from fedretina.local.trainer import LocalTrainer
from fedretina.losses.evidential import TweuObjective
from fedretina.settings.plan import Plan
from fedretina.settings.site import read_site_file

PRODUCT = Path(fedretina.__file__).parent


def passed(call):
    """The product's files of which a call enters a function, settings included, whatever thread it runs in."""
    seen = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(str(Path(file).relative_to(PRODUCT)) for file in seen if Path(file).is_relative_to(PRODUCT))


class LossReachedError(Exception):
    pass


def test_a_photograph_passes_few_files_from_site_yaml_to_the_loss(tiny, tmp_path, monkeypatch):
    experiment = tiny()
    draw_site("site-1", tmp_path / "site-1", images=40, size=64, seed=3)
    score = TweuObjective.score

    def stop_there(self, *answers):
        score(self, *answers)
        raise LossReachedError

    monkeypatch.setattr(TweuObjective, "score", stop_there)
    step = Plan.of(experiment)[0]

    def data(cache):
        settings = read_site_file(tmp_path / "site-1" / "site.yaml", "site-1").data
        return load_site_data("site-1", settings, experiment.images, experiment.seed, tmp_path / cache)

    trainer = LocalTrainer(experiment, data("first"))
    state = trainer.model.net.state_dict()
    sent = {key: state[key].clone() for key in trainer.partition.travelling}

    def trip(cache):
        trainer._data = data(cache)  # the network stands already: no photograph passes it while it is built
        try:
            trainer.train(sent, trainer.initial(), step)
        except LossReachedError:
            return
        raise AssertionError("no loss was computed")

    trip("second")  # imports what the next one only calls
    files = passed(lambda: trip("third"))
    assert {"data/decode.py", "losses/evidential.py"} <= set(files)
    assert len(files) <= 24, "\n".join(["a photograph passes more than 24 files:", *files])


def test_an_update_passes_few_files_to_its_commit(tiny, phantoms, tmp_path):
    experiment = tiny()
    data = phantoms(experiment, "site-1", "site-2")
    server = Coordinator(experiment, "r", tmp_path / "server")
    sites = {name: Site(experiment, own, tmp_path / name) for name, own in data.items()}

    def commit(updates):
        for name, update in updates.items():
            server.accept(name, update)
        server.close()

    for _ in range(2):  # the first round imports what the second only calls
        server.begin(sorted(sites))
        updates = {name: site.handle(server.order(name), server.down(name)) for name, site in sites.items()}
        files = passed(lambda updates=updates: commit(updates))
    assert {"aggregation/admission.py", "aggregation/run_store.py"} <= set(files)
    assert len(files) <= 16, "\n".join(["an update passes more than 16 files:", *files])
