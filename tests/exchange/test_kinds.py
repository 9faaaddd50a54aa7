from fedretina.settings.exchange import Kind


def test_names_on_the_wire_are_fixed():
    names = ["encoder", "norm", "statistic", "counter", "head", "exit", "projector", "control", "calibration", "sums"]
    assert [kind.value for kind in Kind] == names


def test_a_kind_is_its_name():
    assert Kind("statistic") is Kind.STATISTIC
    assert f"{Kind.CONTROL}" == "control"
