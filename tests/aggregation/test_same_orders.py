"""Sites that are told to get the same down do get the same."""

import pytest

from fedretina.aggregation.coordinator import Coordinator
from fedretina.exchange.payload import tensors_digest
from fedretina.loop import run_loop

SAMPLED = {"sampling": {"fraction": 0.67}, "phases": [{"name": "train", "rounds": 3}]}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ({"row": "fedavg", **SAMPLED}, {"whole"}),
        ({"row": "fedavg", "exchange": {"codec": "int8"}, **SAMPLED}, {"whole", "held"}),
        ({"row": "fedap"}, {None}),
    ],
    ids=["one model", "encoded", "a model for each site"],
)
def test_one_name_is_one_message(tiny, phantoms, tmp_path, monkeypatch, words, names):
    experiment, found, down = tiny(**words), {}, Coordinator.down

    def noted(self, site=""):
        tensors, name = down(self, site), self.same_for(site)
        found.setdefault((self.step.name, self._attempt, name), set()).add(tensors_digest(tensors))
        return tensors

    monkeypatch.setattr(Coordinator, "down", noted)
    run_loop(experiment, phantoms(experiment), tmp_path, "r")
    assert {name for *_, name in found} == names
    assert all(len(digests) == 1 for (*_, name), digests in found.items() if name is not None)
