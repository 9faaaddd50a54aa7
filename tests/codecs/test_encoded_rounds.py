"""Rounds whose messages are encoded: what each end holds, what is made up for, and who is refused."""

import pytest
import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.codecs.encoding import Base, encoding_of
from fedretina.errors import RefusedError, SettingsError, TrainingError
from fedretina.exchange.partition import CONTROL, partition_of
from fedretina.exchange.payload import tensors_bytes
from fedretina.local.site import Site
from fedretina.networks.build import build_network
from fedretina.settings.experiment import Experiment
from fedretina.storage import read_tensors, write_tensors

SITES = ("site-1", "site-2", "site-3")
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
ALIKE = ("site-1", "site-1", "site-1")
"""Whose images the sites have; with as many, all of them take as many steps."""
FOLLOWS = {"correction": {"update": "option2"}, "training": PLAIN}
"""Under these settings SCAFFOLD's controls follow from the weights."""


def rows(codec, **words):
    return {"row": "scaffold", "phases": [{"name": "train", "rounds": 4}], "exchange": {"codec": codec}, **words}


class Ran:
    """The rounds of a run, each end built anew for each of them, with all that went over the wire.

    Args:
        away: By round, who does not answer in it.
        before: Called before each round, with its number and the folder.
    """

    def __init__(self, experiment, data, folder, rounds, away=None, before=lambda number, folder: None):
        self.steps = []
        for number in range(rounds):
            before(number, folder)
            server = Coordinator(experiment, "r", folder / "server")
            server.begin(list(data))
            step = {"state": dict(server._model.state()), "sent": {}, "opened": {}, "answers": {}}
            for name in server.asked:
                if name in (away or {}).get(number, ()):
                    continue
                site = Site(experiment, data[name], folder / name)
                step["sent"][name] = server.down(name)
                decoded, taken = site._decoded, {}

                def opened(request, decoded=decoded, taken=taken):
                    found = decoded(request)
                    taken |= found.tensors
                    return found

                site._decoded = opened
                try:
                    step["answers"][name] = site.handle(server.order(name), step["sent"][name])
                except TrainingError as error:
                    server.refuse(name, str(error))
                    continue
                step["opened"][name] = taken
                server.accept(name, step["answers"][name])
            step["record"] = server.close()
            self.steps.append(step)
        self.server = server


@pytest.fixture
def ran(tiny, phantoms, tmp_path):
    def run(rounds, away=None, sites=SITES, before=lambda number, folder: None, **words):
        experiment = tiny(**words)
        data = phantoms(experiment, *set(sites))
        folder = tmp_path / experiment.exchange.codec.name
        return Ran(experiment, {name: data[sites[at]] for at, name in enumerate(SITES)}, folder, rounds, away, before)

    return run


@pytest.mark.parametrize("words", [{}, FOLLOWS], ids=["controls-encoded", "controls-follow"])
def test_every_site_begins_with_the_servers_model_to_the_bit_also_after_a_round_without_it(ran, words):
    steps = ran(4, {1: ["site-3"]}, **rows("int4", **words)).steps
    whole = tensors_bytes(steps[0]["sent"]["site-1"])
    for number, step in enumerate(steps):
        for name, opened in step["opened"].items():
            missed = number == 0 or (number, name) == (2, "site-3")
            sent = tensors_bytes(step["sent"][name])
            assert (sent == whole) if missed else (sent < 0.6 * whole), (number, name)
            assert set(opened) == set(step["sent"][name])
            for key, tensor in opened.items():
                assert torch.equal(tensor, step["state"][key]), (number, name, key)
    asked = [tensors_bytes(sent) for sent in steps[3]["sent"].values()]
    assert steps[3]["record"]["bytes_down"] == round(sum(asked) / 3)
    answers = steps[3]["answers"]
    assert steps[3]["record"]["bytes_up"] == {name: tensors_bytes(one.tensors) for name, one in answers.items()}


def test_controls_that_follow_travel_as_four_bytes_and_are_what_they_would_be(ran):
    plain, coded = (ran(2, sites=ALIKE, **rows(codec, **FOLLOWS)).steps[1] for codec in ("none", "bf16"))
    controls = [key for key in plain["state"] if key.startswith(CONTROL)]
    assert controls
    for step, size in (("answers", 4), ("sent", 4)):
        messages = [getattr(one, "tensors", one) for one in coded[step].values()]
        assert {message[key].numel() for message in messages for key in controls} == {size}
    for key in controls:
        ours, theirs = coded["state"][key], plain["state"][key]
        assert float((ours - theirs).norm()) <= 0.02 * float(theirs.norm()) + 1e-6, key


def one_tensor(tiny):
    experiment = tiny(row="fedavg", exchange={"codec": "int4"})
    parts = partition_of(experiment, build_network(experiment.network, 2, 1))
    encoding = encoding_of(experiment, parts)
    return encoding, max(sorted(encoding.keys), key=lambda key: parts.sizes[key][0]), parts


def distance(encoding, key, parts, feedback):
    """Three sites pull one tensor to targets of their own: how far its mean over the last rounds is from theirs."""
    draws = torch.Generator().manual_seed(0)
    targets = [torch.randn(parts.shapes[key], generator=draws) for _ in range(3)]
    held, lost, down_lost = torch.zeros(parts.shapes[key]), [{}, {}, {}], {}
    away = []
    for _ in range(60):
        ups = []
        for at, target in enumerate(targets):
            base = Base({key: held})
            made = encoding.encode({key: held + 0.5 * (target - held)}, base, lost[at], {})
            ups.append(encoding.decode(made.frames, base).tensors[key])
            assert torch.equal(ups[-1], made.held[key])
            lost[at] = made.errors if feedback else {}
        made = encoding.encode({key: sum(ups) / 3}, Base({key: held}), down_lost, {})
        held, down_lost = made.held[key], made.errors if feedback else {}
        away.append(held)
    mean = sum(away[-30:]) / 30
    return float((mean - sum(targets) / 3).norm() / sum(targets).norm())


def test_what_rounding_loses_is_made_up_for(tiny):
    given = one_tensor(tiny)
    with_, without = distance(*given, feedback=True), distance(*given, feedback=False)
    assert with_ < without / 3, (with_, without)


def test_what_is_not_a_parameter_or_small_is_not_encoded(tiny):
    experiment = tiny(row="fedavg", exchange={"codec": {"name": "int8", "smallest": 500}})
    parts = partition_of(experiment, build_network(experiment.network, 2, 1))
    encoding = encoding_of(experiment, parts)
    left = set(parts.travelling) - encoding.keys
    assert any(key.endswith("running_var") for key in left)
    assert {parts.sizes[key][0] >= 500 for key in left & set(parts.parameters)} == {False}
    assert encoding.keys


@pytest.mark.attack(
    "a hostile site",
    "an update in another form than the run's codec gives, or values that are none behind it",
    "refused by name, and the round goes on with the others",
)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda sent: torch.zeros(1), "must travel encoded"),
        (lambda sent: sent[:-5], "another number of bytes|cannot be unpacked"),
        (lambda sent: torch.cat([sent[:4] ^ 255, sent[4:]]), "the change of another model"),
        (lambda sent: torch.full((4,), 255, dtype=torch.uint8), "a way of nan"),
    ],
)
def test_a_site_that_sends_another_form_is_refused_alone(tiny, phantoms, tmp_path, spoil, said):
    experiment = tiny(**rows("int4", **FOLLOWS))
    server = Coordinator(experiment, "r", tmp_path / "server")
    server.begin(SITES[:2])
    for name, data in phantoms(experiment, *SITES[:2]).items():
        answer = Site(experiment, data, tmp_path / name).handle(server.order(name), server.down(name))
        if name == "site-1":
            encoded = [key for key, sent in answer.tensors.items() if sent.dtype == torch.uint8]
            key = min(key for key in encoded if key.startswith(CONTROL) == ("way" in said))
            bad = {**answer.tensors, key: spoil(answer.tensors[key])}
            with pytest.raises(RefusedError, match=said):
                server.accept(name, answer._replace(tensors=bad))
        else:
            server.accept(name, answer)
    record = server.close()
    assert list(record["scalars"]) == ["site-2"]


@pytest.mark.attack(
    "an accident",
    "a site's folder was put back from a backup and holds another model than the server thinks",
    "the site says so, has no part in the round, and gets the next model whole",
)
def test_a_site_that_holds_another_model_leaves_the_round_and_gets_the_next_one_whole(ran):
    def spoil(number, folder):
        if number == 1:
            path = folder / "site-1" / "train-0000.safetensors"
            tensors, record = read_tensors(path)
            key = max(key for key in tensors if key.startswith("memory:codec:held:"))
            write_tensors(path, {**tensors, key: tensors[key] + 1}, {"step": 0, "record": record["record"]})

    first, second, third = ran(3, before=spoil, **rows("int4")).steps
    assert first["record"]["refused"] == third["record"]["refused"] == {}
    said = second["record"]["refused"]["site-1"]
    assert "the change of another model than the one that this end holds" in said
    assert tensors_bytes(third["sent"]["site-1"]) == tensors_bytes(first["sent"]["site-1"])
    assert tensors_bytes(third["sent"]["site-2"]) < tensors_bytes(third["sent"]["site-1"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"row": "fedavg", "exchange": {"personal": "everything"}}, "codec"),
        (
            {"row": "fedavg", "grades": 5, "exchange": {"personal": "nothing", "encrypt": "head"}},
            "cannot read. Set codec to 'none'",
        ),
        ({"row": "analytic"}, "codec"),
    ],
)
def test_what_a_codec_does_not_go_with_is_refused_with_the_settings(words, said):
    words = {**words, "exchange": {**words.get("exchange", {}), "codec": "int8"}}
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve(words)
