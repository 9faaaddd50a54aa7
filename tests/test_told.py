"""What leaves of an error's sentence: our own words, numbers, names of both ends; nothing that was read."""

import pytest

from fedretina.errors import DataError, FedretinaError, TrainingError
from fedretina.exchange.payload import Stamp
from fedretina.settings.experiment import Experiment
from fedretina.storage import require_name, require_sites
from fedretina.told import told


def caught(call, *args, **kwargs):
    with pytest.raises(FedretinaError) as found:
        call(*args, **kwargs)
    return found.value


@pytest.mark.attack(
    "a hostile server",
    "make a site's error repeat a value of a file or of its environment",
    "a sentence that leaves holds our own words, numbers and names of both ends, and `...` for all else",
)
@pytest.mark.parametrize(
    "planted", ["mercury", "/srv/hospital/kit", "MIIEowIBAAKCAQEA", "https://inside.example", "Jürgen", "1234567890123"]
)
def test_a_value_that_was_read_becomes_dots(planted):
    error = caught(require_sites, [planted, planted])
    assert planted in str(error)
    said = told(error)
    assert "name" in said
    assert not any(part in said for part in ("mercury", "srv", "hospital", "MII", "https", "rgen", "123456"))


def test_numbers_our_own_words_and_names_of_both_ends_stay():
    stamp = Stamp("spring", "train", 3, 0, "0123456789ab")
    error = caught(stamp.require, stamp._replace(round=4))
    assert told(error, {"spring", "train"}) == str(error)
    assert "tempest" not in told(caught(stamp._replace(phase="tempest").require, stamp), {"spring"})


def test_a_class_that_may_not_leave_only_gives_its_name_at_a_site():
    error = DataError("manifest.csv names 12 patients.")
    assert told(error) == "DataError: the site's own log says what and where."


def test_an_error_without_a_trace_has_no_words_of_its_own():
    assert told(TrainingError("mercury")) == "TrainingError: the site's own log says what and where."
    assert told(TrainingError("mercury").telling("it failed.")) == "it failed."


def test_the_words_of_a_library_do_not_leave():
    error = caught(Experiment.resolve, {"training": {"learning_rate": "mercury"}})
    assert "mercury" not in told(error)
    assert told(error).startswith("the experiment's settings cannot be used: ")
    assert "mercury" not in told(caught(require_name, "mercury/../x", "run"))
