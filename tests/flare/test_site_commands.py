"""What a site does for a server that names, in place of a job, another folder of the site's kit."""

from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from nvflare.apis.job_def import JobMetaKey
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_engine_internal_spec import ClientEngineInternalSpec
from nvflare.private.fed.client.scheduler_cmds import StartJobProcessor
from nvflare.private.fed.client.training_cmds import DeleteRunNumberProcessor

from fedretina.flare.site_commands import SiteCommand


class Kit(ClientEngineInternalSpec):
    """FLARE's engine, as far as the command needs it, over a kit's folder."""

    def __init__(self, folder: Path) -> None:
        self.args = SimpleNamespace(workspace=str(folder))

    def delete_run(self, job_id: str) -> str:
        return ClientEngine.delete_run(self, job_id)


Kit.__abstractmethods__ = frozenset()


@pytest.fixture
def kit(tmp_path):
    for name in ("startup", "local", "fedretina_runs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    return Kit(tmp_path)


def delete(command, kit, job):
    order = Message(TrainingTopic.DELETE_RUN, "")
    order.set_header(RequestHeader.JOB_ID, job)
    return command.process(order, kit).body


@pytest.mark.attack(
    "a hostile server",
    "have a site delete its startup kit, its settings or the state and ledgers of all runs, in place of a job's folder",
    "nothing is done where what is named is no job",
)
@pytest.mark.parametrize(
    "name", ["local", "startup", "fedretina_runs", "../elsewhere", "", "a -m b", "5F1C47CF-AB2B-4D87-8A63-1CF3FC1217F8"]
)
def test_what_is_no_job_is_not_deleted(kit, name):
    assert "names no job" in delete(SiteCommand(DeleteRunNumberProcessor()), kit, name)
    assert len(list(Path(kit.args.workspace).glob("*/file"))) == 3


def test_flare_alone_would_delete_the_state_of_all_runs_and_a_job_still_is(kit):
    job = str(uuid4())
    folder = Path(kit.args.workspace)
    (folder / job).mkdir()
    assert delete(SiteCommand(DeleteRunNumberProcessor()), kit, job) == "OK"
    assert not (folder / job).exists()
    delete(DeleteRunNumberProcessor(), kit, "fedretina_runs")
    assert not (folder / "fedretina_runs").exists()


@pytest.fixture
def started(monkeypatch):
    """A call that has a site start a job by an id and a meta, and gives back what the site says."""
    monkeypatch.setattr(StartJobProcessor, "process", lambda self, req, app_ctx: Message("", "OK"))

    def start(job, meta):
        order = Message(TrainingTopic.START_JOB, {})
        order.set_header(RequestHeader.JOB_ID, job)
        order.set_header(RequestHeader.JOB_META, meta)
        return SiteCommand(StartJobProcessor()).process(order, None).body

    return start


@pytest.mark.parametrize("named", ["../startup", "", None, "5f1c47cf-ab2b-4d87-8a63-1cf3fc1217f8"])
def test_a_job_whose_meta_names_another_is_not_started(started, named):
    assert "names no job" in started(str(uuid4()), {JobMetaKey.JOB_ID.value: named})


def test_a_job_whose_meta_names_it_or_none_is_started(started):
    job = str(uuid4())
    assert [started(job, meta) for meta in ({JobMetaKey.JOB_ID.value: job}, {}, None)] == ["OK"] * 3
