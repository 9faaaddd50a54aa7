"""What FedEE's methods cost: which networks are measured."""

from __future__ import annotations

from fedretina_papers.fedee_costs import methods_of
from fedretina_papers.plan import BenchmarkPlan, preset


def test_the_four_methods_of_a_plan():
    methods = methods_of(BenchmarkPlan.read(preset("fedee")))
    assert set(methods) == {"Backbone", "MCDrop", "Deep Ens.", "FedEE"}
    assert (methods["MCDrop"].passes, methods["MCDrop"].networks) == (5, 1)
    assert (methods["Deep Ens."].passes, methods["Deep Ens."].networks) == (1, 3)
    assert methods["FedEE"].network["exits"] is not None
    assert methods["Backbone"].network["exits"] is None
    assert methods["Backbone"].shape == (3, 64, 64)
