"""`fedretina benchmark gpu` in a tiny form on the CPU: stopped by its clock, taken up again, and its page."""

from __future__ import annotations

import shutil
from itertools import count

import pytest
import torch
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.errors import SettingsError
from fedretina.settings.plan import merged
from fedretina.storage import read_json
from fedretina_papers.gpu import run
from fedretina_papers.gpu.page import write_gpu_page
from fedretina_papers.gpu.plan import GpuPlan
from fedretina_papers.gpu.run import run_gpu
from fedretina_papers.paper_size.limits import Limits
from fedretina_papers.plan import preset

TINY = {
    "precisions": ["float32", "bf16"],
    "kernels": ["repeatable"],
    "together": [1],  # a process more would cost as much again
    "images": 16,
    "steps": 2,
    "turns": 1,
    "experiment": {"images": {"image_size": 32}, "training": {"threads": 1}, "phantom_images": 24},
}
OTHERS = dict.fromkeys(("resnet50", "efficientnet_lite0", "efficientnet_b4"))
LITTLE = {"little": {"encoder": "efficientnet_lite0", "batch_size": 8}, **OTHERS}


def plan(**words):
    return GpuPlan.read(merged(preset("gpu"), {**TINY, "networks": LITTLE, **words}))


@pytest.fixture(scope="module")
def measured(tmp_path_factory, little_encoders):
    """A folder in which all was measured, in two calls; and what they told."""
    out, told = tmp_path_factory.mktemp("gpu") / "out", []
    assert run_gpu(plan(), out, 1, Limits(3, clock=count(0, 60).__next__), told.append) == {}
    assert "the next call goes on with little-" in told[-1].words
    assert 0 < told[-1].done < 3
    for _ in range(2):  # the last finds nothing to do
        assert run_gpu(plan(), out, 1, Limits(), told.append) == {}
    return out, told


def test_each_is_measured_once_and_says_what_it_costs(measured):
    out, told = measured
    assert [one.words.partition(":")[0] for one in told if "images/s" in one.words] == [
        "little-float32-repeatable",
        "little-bf16-repeatable",
        "little-bf16-repeatable-sites1",
    ]
    assert told[-1].done == 3
    records = {file.stem: read_json(file) for file in (out / "results").glob("*.json")}
    plain, half = (records[f"little-{name}-repeatable"] for name in ("float32", "bf16"))
    for record in (plain, half):
        assert record["same_bits"] is True
        assert record["ratio"] == pytest.approx(record["real"][0] / record["synthetic"][0])
        assert record["mfu"] == pytest.approx(record["real"][0] * record["flops_an_image"] / record["ceiling_flops_s"])
    assert plain["distance"] == 0
    assert 0 < half["distance"] < 1
    assert records["little-bf16-repeatable-sites1"]["images_s"] > 0


def test_the_page_of_nothing_of_a_part_and_of_all(measured, tmp_path):
    def page(out):
        write_gpu_page(out, tmp_path / "page.md")
        return (tmp_path / "page.md").read_text()

    nothing = page(tmp_path / "none")
    assert "**This has not run.**" in nothing
    assert "| resnet50, bf16, repeatable | has not run |" in nothing
    assert "| efficientnet_b4 | 4 | has not run |" in nothing

    every = page(measured[0])
    assert "**3 of 3** are stored, on no GPU" in every
    assert "**Nothing here ran on a GPU**" in every
    assert "this was none" in every
    assert "has not run |" not in every
    assert "| little, bf16, repeatable | " in every
    assert "| yes | 0.0000 |" in every
    assert every == page(measured[0])

    shutil.copytree(measured[0], tmp_path / "some")
    (tmp_path / "some/results/little-bf16-repeatable-sites1.json").unlink()
    assert "| little | 1 | has not run |" in page(tmp_path / "some")


def test_what_cannot_be_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    def fails(asked, work, cache):
        if work.precision == "tf32":
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate much.")
        if work.precision == "bf16":
            raise RuntimeError("CUDA error: an illegal instruction\nand more lines")
        return {"images_s": 5.0}

    monkeypatch.setattr(run, "measure", fails)
    told = []
    asked = plan(precisions=["float32", "tf32", "bf16"], together=[])
    missing = run_gpu(asked, tmp_path / "out", 1, Limits(), told.append)
    assert missing == {
        "little-tf32-repeatable": "the memory of the device is full.",
        "little-bf16-repeatable": "CUDA error: an illegal instruction",
    }
    assert [one.done for one in told] == [1, 1, 1]
    with pytest.raises(SettingsError, match="under another plan"):
        run_gpu(plan(), tmp_path / "out", 1, Limits(), told.append)


def test_what_is_asked_wrongly_is_a_sentence(tmp_path):
    with pytest.raises(SettingsError, match="leave --jobs out"):
        run_gpu(plan(), tmp_path / "out", 2, Limits(), lambda told: None)
    for words, sentence in (
        (("--phantoms", "a"), "leave --site and --phantoms out"),
        (("--state-mb", "1"), "nothing reads --state-mb"),
        (("--rows", "a"), "has no rows"),
    ):
        done = CliRunner().invoke(main, ["benchmark", "gpu", *words, "--out", str(tmp_path / "out")])
        assert done.exit_code == 2
        assert sentence in done.output
