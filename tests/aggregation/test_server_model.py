"""What the server begins a step with, asked for by several threads."""

import sys
import threading
import time
from types import SimpleNamespace

import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.aggregation.lineage import ServerModel
from fedretina.networks.build import build_network

LOADS = 40


def between_lines(frame, event, arg):
    """Let other threads run between any two lines of the one that gives a model."""
    if frame.f_code is not ServerModel.state.__code__:
        return None
    time.sleep(0.0005)
    return between_lines


def test_each_site_gets_its_own_model_though_threads_ask_for_several_at_once(tiny, tmp_path):
    """One site's answer is decoded while another's order is put together."""
    experiment = tiny(row="fedap")
    coordinator = Coordinator(experiment, "r", tmp_path)
    sites = {f"site-{number}": float(number) for number in (1, 2)}
    for site, number in sites.items():
        coordinator._store.put_for(0, site, {"own": torch.tensor([number])})
    net = build_network(experiment.network, experiment.head_width or 2, experiment.seed)
    begun = SimpleNamespace(base=0, begins_anew=False)
    model = ServerModel(experiment, net, coordinator.partition, coordinator._store, begun)
    loads = []

    def load(site):
        sys.settrace(between_lines)
        for _ in range(LOADS):
            loads.append((site, model.state(site)["own"].item()))

    threads = [threading.Thread(target=load, args=(site,)) for site in sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 2 * LOADS
    assert [(site, found) for site, found in loads if found != sites[site]] == []
