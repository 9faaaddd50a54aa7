"""`fedretina site approve`, `approvals` and `withdraw`, and a kit that requires approval, as a hospital calls them."""

import json

import pytest
import yaml
from click.testing import CliRunner
from signed_kit import write_kit
from simulation import SMALL

from fedretina.cli import main
from fedretina.errors import DataError
from fedretina.kit.approvals import AskedPlan
from fedretina.kit.end_status import EndFiles
from fedretina.kit.hardened import site_privacy
from fedretina.kit.site_check import approval_finding, keep_findings, site_settings
from fedretina.kit.startup_kit import Certificate, open_kit
from fedretina.kit.waiting_plans import WaitingPlans
from fedretina.report.status_page import status_page
from fedretina.settings.experiment import Experiment

LEAD = "lead@consortium.example"
WORDS = {**SMALL, "exchange": {"codec": "int8"}, "phantom_images": 0}
MANIFEST = "file,label,patient,split\n" + "".join(
    f"{number}.jpg,{number % 5},patient-{number // 2},{'train' if number < 12 else 'val' if number < 16 else 'test'}\n"
    for number in range(20)
)


def call(*words, code=0):
    result = CliRunner().invoke(main, ["site", *map(str, words)])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.output


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "manifest.csv").write_text(MANIFEST)
    data = {"manifest": "manifest.csv", "scheme": {"grades": list("01234")}, "limit": {"val": 2}}
    noise = {"kind": "gaussian", "clip": 0.1, "multiplier": 2.0, "max_epsilon": 7}
    policy = {"hold_back": ["images"], "noise": noise}
    (tmp_path / "site.yaml").write_text(
        yaml.safe_dump({"data": data, "state_root": "runs", "policy": policy, "approval": "required"})
    )
    return write_kit(tmp_path / "kit", site_file=str(tmp_path / "site.yaml"))


def wait(kit, run="spring", words=WORDS):
    experiment = Experiment.resolve(words)
    lead = Certificate(LEAD, "Consortium", "lead", None, None)
    WaitingPlans(kit).put(AskedPlan.of(experiment, run, LEAD), yaml.safe_dump(words), lead, "job")


def test_the_plan_is_shown_in_plain_words_from_the_sites_own_files(kit):
    assert "no plan waits" in call("approve", kit.folder, code=2)
    wait(kit)
    text = " ".join(call("approve", kit.folder).split())
    for words in (
        "Run: spring, plan ",
        f"Who asks: {LEAD} (Consortium, lead), since 20",
        "few_blocks by FedUAA",
        "fundus images: 12 images of 6 patients to train on; 4 images of 2 patients to choose by (at most 2 of them",
        "Rounds: 2 rounds of train (with labels, ",
        "Leaves in each round of training, 2 times: encoder: weights of the image network, ",
        "at most ",
        "packed in fewer bits (int8)",
        "YOUR POLICY CHANGES NUMBERS",
        "You hold back images",
        "each of at least 5 patients",
        "nothing spent so far; ",
        "(2 noised answers); your bound is 7",
        "What you get: a model with a head for your own grades",
        "Nothing is decided",
    ):
        assert words in text, words
    shown = json.loads(call("approve", kit.folder, "spring", "--json"))
    assert shown["agreed"]["phases"][0]["rounds"] == 2
    assert "patients" not in shown["words"]["Figures that leave"].replace("You hold back", "").split(", ")


def test_counts_of_ill_patients_are_named_where_job_and_policy_let_them_go(kit, tmp_path):
    said = (
        "ill validation patients by the chance of disease that the model gives them, once, before the end; each of at"
    )
    wait(kit, words={**WORDS, "referral_curve": True})
    assert said not in " ".join(call("approve", kit.folder).split())
    own = yaml.safe_load((tmp_path / "site.yaml").read_text())
    (tmp_path / "site.yaml").write_text(yaml.safe_dump({**own, "policy": {**own["policy"], "referral_curve": True}}))
    assert said in " ".join(call("approve", kit.folder).split())


def test_what_the_sites_policy_forbids_is_said_before_a_yes(kit):
    wait(kit, words={**SMALL, "exchange": {"personal": "nothing"}, "grades": 5})
    assert "YOUR POLICY FORBIDS THIS" in " ".join(call("approve", kit.folder).split())
    wait(kit, "sealed", words={**SMALL, "exchange": {"personal": "nothing", "encrypt": "head"}, "grades": 5})
    text = " ".join(call("approve", kit.folder, "sealed").split())
    assert "cannot read it) (YOUR POLICY CHANGES NUMBERS, which encrypted ones do not allow: the order would be" in text


def test_a_decision_is_listed_signed_in_the_ledger_and_on_the_page(kit):
    wait(kit)
    wait(kit, "summer")
    assert "these wait" in call("approve", kit.folder, "--yes", code=2)
    assert "give --reason" in call("approve", kit.folder, "spring", "--yes", code=2)
    # The account that the command runs under is the service's, and nobody's name.
    assert "give --by" in call("approve", kit.folder, "spring", "--yes", "--reason", "vote 7", code=2)
    assert json.loads(call("approvals", kit.folder, "--json"))["decisions"] == []
    assert "2 plans wait" in approval_finding(kit, site_settings(kit)).found
    page = status_page(EndFiles(kit).status(False))
    assert f"Waits: run spring, for {LEAD}" in page
    assert "2 plans wait" in page
    said = call("approve", kit.folder, "spring", "--yes", "--reason", "vote 7", "--by", "Dr. Eye", "--standing", "seed")
    assert "run spring is approved until" in said
    assert "differs in seed alone" in said
    said = call("approve", kit.folder, "--no", "--reason", "no vote", "--by", "Dr. Eye")  # the one that is left
    assert "run summer is refused" in said
    listed = json.loads(call("approvals", kit.folder, "--json"))
    assert [made["decision"] for made in listed["decisions"]] == ["approved", "refused"]
    assert all(made["genuine"] for made in listed["decisions"])
    assert listed["waiting"] == []
    assert "give --by" in call("withdraw", kit.folder, "spring", "--reason", "vote ended", code=2)
    ended = ("--reason", "vote ended", "--by", "Dr. Eye")
    said = call("withdraw", kit.folder, "spring", *ended)
    assert "Nothing of run spring has left this site" in said
    number = listed["decisions"][0]["number"]
    assert f"Standing approval {number} goes on for other runs" in said
    assert "a standing one: other runs" not in said
    assert "the runs are spring" in call("withdraw", kit.folder, "sprnig", *ended, code=2)
    said = call("withdraw", kit.folder, number, *ended)
    assert "Standing approval" not in said
    assert "a standing one: other runs that went on by it alone stop too" in said
    text = call("ledger", kit.folder)
    assert "decisions of the hospital: 4" in text
    assert "withdrawn: run spring" in text
    assert call("ledger", kit.folder, "--csv").count("spring") >= 2
    keep_findings(kit, [approval_finding(kit, site_settings(kit))._replace(good=False, mend="old")])
    page = status_page(EndFiles(kit).status(False))
    assert "must be mended" not in page  # what a check found then is not what waits now
    for words in ("Approved until", "Refused: run summer; by Dr. Eye", "Withdrawn: run spring"):
        assert words in page, words
    assert "vote" not in page  # reasons stay in the list
    path = kit.folder / "approvals" / "approvals.jsonl"
    path.write_text(path.read_text().replace("vote 7", "vote 8"))
    assert "its signature does not hold" in call("approvals", kit.folder, code=1)


def test_a_withdrawal_names_what_else_lets_the_run_go_on(kit):
    decided = ("--reason", "vote 7", "--by", "Dr. Eye")
    wait(kit)
    call("approve", kit.folder, "--yes", *decided, "--standing", "seed")
    wait(kit)
    call("approve", kit.folder, "--yes", *decided)
    wait(kit, words={**WORDS, "restart": {"step": "train-0001", "mark": "abcd"}})
    call("approve", kit.folder, "--yes", *decided)
    first, second, back = (made["number"] for made in json.loads(call("approvals", kit.folder, "--json"))["decisions"])
    stops = "run spring stops here at its next step"
    said = call("withdraw", kit.folder, first, *decided)
    assert stops not in said
    assert f"Approval {second} holds until " in said
    assert f"so run spring goes on. To take it back too: `fedretina site withdraw {kit.folder} {second}`" in said
    assert f"Approval {back} holds until " in said
    said = call("withdraw", kit.folder, second, *decided)
    assert stops not in said
    assert "so run spring goes on if it works by the plan of that one. To take" in said
    assert f"`fedretina site withdraw {kit.folder} {back}`" in said
    said = call("withdraw", kit.folder, back, *decided)
    assert stops in said
    assert "holds until" not in said


def test_what_left_under_an_earlier_name_of_the_site_is_known(kit, tmp_path):
    privacy = {"kind": "gaussian", "rho": 0.5, "epsilon_so_far": 5.3}
    line = {"run": "spring", "phase": "train", "round": 0, "attempt": 0, "tensors": {"encoder": 1}, "scalars": {}}
    path = tmp_path / "runs" / "spring" / "site-old" / "ledger.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**line, "bytes": 7, "digest": "ab" * 32, "privacy": privacy}) + "\n")
    text = call("ledger", kit.folder)
    assert f"nothing has left {kit.name}" not in text
    assert "run spring (under the name site-old): 1 message" in text
    assert "privacy budget spent over all runs: epsilon 5.3" in text
    assert [row["site"] for row in json.loads(call("ledger", kit.folder, "--json"))] == ["site-old"]
    assert call("ledger", kit.folder, "--csv", "--run", "spring").splitlines()[1].endswith(",site-old")
    page = status_page(EndFiles(kit).status(False))
    assert "spring (as site-old)" in page
    wait(kit)
    assert "spent so far" in " ".join(call("approve", kit.folder).split())
    assert "nothing spent so far" not in " ".join(call("approve", kit.folder).split())
    decided = ("--reason", "vote 7", "--by", "Dr. Eye")
    call("approve", kit.folder, "--yes", *decided)
    said = call("withdraw", kit.folder, "spring", *decided)
    assert "What 1 message brought to the server stays with the others" in said
    # Where the environment names the folder, other sites of a rehearsal may have theirs in it.
    (kit.folder / "local" / "privacy.json").unlink()
    named = CliRunner(env={"FEDRETINA_SITE_FILE": str(tmp_path / "site.yaml")})
    rehearsal = named.invoke(main, ["site", "ledger", str(kit.folder)]).output
    assert "site-old" not in rehearsal


def test_on_a_terminal_it_asks(kit, monkeypatch):
    wait(kit)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    said = CliRunner().invoke(main, ["site", "approve", str(kit.folder)], input="n\nno vote yet\nDr. Eye\n")
    assert said.exit_code == 0, said.output
    assert said.output.index("What you get") < said.output.index("May this run use your images?")
    assert "run spring is refused" in said.output
    assert "Who decides: " in said.output
    assert "by Dr. Eye, " in call("approvals", kit.folder)
    assert ": no vote yet" in call("approvals", kit.folder)
    said = CliRunner().invoke(main, ["site", "withdraw", str(kit.folder), "spring"], input="vote ended\nDr. Eye\n")
    assert "Who decides: " in said.output


def test_a_named_setting_that_decides_what_leaves_is_refused_before_anything_is_shown(kit):
    wait(kit)
    said = call("approve", kit.folder, "--yes", "--reason", "x", "--standing", "exchange.personal", code=2)
    assert "exchange.personal may not be left open" in said
    assert "Who asks" not in said


def test_a_kit_can_require_approval_whatever_its_site_file_says(tmp_path):
    (tmp_path / "site.yaml").write_text("approval: off\n".replace("off", '"off"'))
    kit = write_kit(tmp_path / "kit", site_file=str(tmp_path / "site.yaml"))
    assert site_settings(kit).approval == "off"
    assert approval_finding(kit, site_settings(kit)).good is None
    required = site_privacy(kit.local("privacy.json"), None, approval=True)
    (kit.folder / "local" / "privacy.json").write_text(json.dumps(required))
    kit = open_kit(kit.folder)
    assert site_settings(kit).approval == "required"
    assert approval_finding(kit, site_settings(kit)).good
    again = site_privacy(required, str(tmp_path / "site.yaml"))  # hardened again: it stays
    assert again["scopes"][0]["properties"]["fedretina"]["approval"] == "required"
    required["scopes"][0]["properties"]["fedretina"]["approval"] = "of"
    (kit.folder / "local" / "privacy.json").write_text(json.dumps(required))
    with pytest.raises(DataError, match="write 'required', or take it out"):
        site_settings(open_kit(kit.folder))
