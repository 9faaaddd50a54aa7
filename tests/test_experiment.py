import pytest

from fedretina.errors import SettingsError
from fedretina.exchange.partition import partition
from fedretina.networks.build import build_on_meta
from fedretina.rows import ROWS
from fedretina.settings.aggregation import UawSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.objective import FocalSettings, TweuSettings
from fedretina.settings.plan import Plan, merged


def digest(experiment):
    return experiment.digest(partition(build_on_meta(experiment.network), experiment.exchange))


@pytest.mark.parametrize("name", ROWS)
def test_every_row_resolves_and_keeps_its_name(name):
    experiment = Experiment.resolve({"row": name})
    assert experiment.row == name
    assert ROWS[name].title
    assert ROWS[name].paper


def test_rows_differ_in_their_settings():
    assert len(
        {Experiment.resolve({"row": name}).model_copy(update={"row": "x"}).model_dump_json() for name in ROWS}
    ) == len(ROWS)


def test_a_jobs_own_words_win_over_the_row():
    experiment = Experiment.resolve(
        {"row": "feduaa", "objective": {"tau": 0.1}, "aggregation": {"rule": {"temperature": 2}}}
    )
    assert experiment.objective.name == "tweu"
    assert experiment.objective.tau == 0.1
    assert experiment.aggregation.rule == UawSettings(temperature=2)


def test_official_reproduces_the_code_where_it_differs_from_the_paper():
    paper, code = Experiment.resolve({"row": "feduaa"}), Experiment.resolve({"row": "feduaa_official"})
    assert (paper.exchange.bn_match, code.exchange.bn_match) == ("module", "name")
    assert (paper.objective.kl_anneal, code.objective.kl_anneal) == ("linear_rounds", "official")
    assert (paper.theta.rule, code.theta.rule) == ("youden", "official")
    assert (paper.evaluation.auc_input, code.evaluation.auc_input) == ("expected_probability", "logits_softmax")
    assert code.network.normalise == "none"
    assert code.objective.tau == 0.05
    assert code.training.drop_last
    assert (code.training.learning_rate, code.training.momentum, code.training.weight_decay) == (0.01, 0, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"row": "magic"}, "there is no row 'magic' .`fedretina methods` lists them.: it may be one of analytic, "),
        ({"row": "fedua"}, r"there is no row 'fedua' .*: did you mean feduaa\?"),
        ({"seed": -1}, "seed"),
        ({"objective": {"tau": 0}}, "objective.tau"),
        ({"typo": 1}, "typo is no setting: it may be one of aggregation, augment, "),
        ({"training": {"batchsize": 8}}, r"training\.batchsize is no setting: did you mean batch_size\?"),
        ({"rounds": 3}, r"rounds is no setting: did you mean phases\[\]\.rounds\?"),
        ({"epochs": 3}, r"epochs is no setting: did you mean t[a-z]+\.epochs\?"),
        ({"phases": [{"training": {"epoch": 1}}]}, r"phases\.0\.training\.epoch is no setting: did you mean epochs\?"),
        (
            {"images": {"modality": "oct", "image_siz": 1}},
            r"images\.image_siz is no setting: did you mean image_size\?",
        ),
        ({"network": 5}, "network has settings of its own: write them below it, as `name: value` lines"),
        ({"phases": 3}, "phases is a list: write its values"),
        ({"run": "../x"}, "run"),
        ({"phases": []}, "phases is empty"),
        ({"phases": [{"name": "train"}, {"name": "train"}]}, "must differ"),
        ({"quorum": "yes"}, "quorum: Input should be a valid integer"),
        ({"phases": [{"name": "finalise"}]}, "must differ"),
        ({"training": {"batch_size": 1}}, "training.batch_size"),
        ({"aggregation": {"rule": "loudest"}}, "aggregation.rule"),
        ({"training": {"clip_norm": float("inf")}}, r"training\.clip_norm: Input should be a finite number"),
        ({"correction": {"name": "scaffold", "max_ratio": float("inf")}}, "max_ratio: Input should be a finite number"),
        (
            {"aggregation": {"robust": {"name": "norm_bound", "limit": float("inf")}}},
            "limit: Input should be a finite number",
        ),
    ],
)
def test_bad_settings_get_a_sentence(words, said):
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            {"row": "fedprox", "correction": {"alpha": 5}},
            "correction.alpha: 'fedprox' does not read it, 'feddyn' and 'fe",
        ),
        (
            {"row": "fedbn", "objective": {"tau": 9}},
            "objective.tau: 'cross_entropy' does not read it, 'tweu'",
        ),
        (
            {"row": "fedbn", "aggregation": {"rule": {"temperature": 7}}},
            "aggregation.rule.temperature: 'uniform' does not read it, 'uaw' alone does: leave it out",
        ),
        (
            {"row": "fedbn", "quorum": 3, "aggregation": {"robust": {"name": "median", "keep": 4}}},
            "aggregation.robust.keep: 'median' does not read it, 'krum' alone does",
        ),
        (
            {"row": "fedbn", "aggregation": {"robust": {"name": "norm_bound", "limit": 1, "bound": 3}}},
            "aggregation.robust: bound is 3, but limit is given and replaces it",
        ),
        (
            {"training": {"optimizer": "adam", "momentum": 0.9}},
            "training.momentum: optimizer 'adam' does not read it, 'sgd'",
        ),
        (
            {"training": {"decay": 0.9}},
            "training.decay: schedule 'constant' does not read it, 'exponential' alone does",
        ),
        ({"row": "fedrep", "training": {"epochs": 3}}, "training: epochs is 3, but stretches .* replace it"),
        (
            {"row": "oct_fedavg", "network": {"head": {"width": 16}}},
            "network.head.width: layout 'linear' does not read",
        ),
        ({"calibration": {"ridge": 2}}, "a network without a calibrator does not read it"),
        ({"tune": {"learning_rate": 0.1}}, "tune: learning_rate is 0.1, but without epochs"),
        ({"phases": [{"weights": "samples"}]}, "phases.0: phase 'train' trains with labels and does not read weights"),
        ({"row": "feduaa_official", "theta": {"fallback": "half"}}, "theta.fallback: 'official' does not read it"),
        (
            {"row": "oct_moco_v3_scaffold", "phases": [{"name": "pretrain", "contrastive": {"queue": 9}}]},
            r"phases.0.contrastive.queue: 'moco_v3' does not read it, 'moco_v2' alone does",
        ),
        ({"correction": {"name": "fedprox", "muu": 5}}, r"correction.muu is no setting: did you mean mu\?"),
        ({"correction": "fedporx"}, "correction.name: it is 'fedporx', but may be 'none', 'fedprox'"),
        ({"correction": {"name": ["fedprox"]}}, "correction.name: it is .'fedprox'., but may be"),
        ({"correction": 5}, "correction has settings of its own"),
    ],
)
def test_a_setting_that_the_chosen_method_does_not_read_is_refused(words, said):
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve(words)


def test_a_job_that_chooses_another_method_than_its_row_leaves_nothing_of_the_rows():
    chosen = Experiment.resolve({"row": "feduaa_official", "objective": {"name": "focal", "gamma": 1}}).objective
    assert chosen == FocalSettings(gamma=1)
    same = Experiment.resolve({"row": "feduaa_official", "objective": "tweu"}).objective
    assert same == TweuSettings(kl_anneal="official")
    again = Experiment.resolve({"row": "feduaa", "aggregation": {"rule": {"name": "uaw", "temperature": 3}}})
    assert again.aggregation.rule == UawSettings(temperature=3)
    sgd = {"row": "oct_moco_scaffold", "phases": [{"name": "pretrain", "training": {"optimizer": "adam"}}]}
    assert Experiment.resolve(sgd).phases[0].training.momentum == 0
    assert Experiment.model_validate_json(again.model_dump_json()) == again


def test_files_that_cannot_be_read_get_a_sentence(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        Experiment.load(tmp_path / "none.yaml")
    (tmp_path / "e.yaml").write_text("- just\n- a list\n")
    with pytest.raises(SettingsError, match="holds no settings"):
        Experiment.load(tmp_path / "e.yaml")


def test_the_digest_sees_settings_and_not_a_runs_name():
    base = Experiment.resolve({})
    assert digest(base) == digest(Experiment.resolve({"run": "again"}))
    assert digest(base) != digest(Experiment.resolve({"seed": 2}))
    assert digest(base) != digest(Experiment.resolve({"objective": {"tau": 0.06}}))


def test_the_plan_is_rounds_then_validate_then_finalise():
    experiment = Experiment.resolve({"phases": [{"name": "train", "rounds": 2}, {"name": "more", "rounds": 1}]})
    plan = Plan.of(experiment)
    assert [step.name for step in plan] == ["train-0000", "train-0001", "more-0000", "validate-0000", "finalise-0000"]
    assert plan.training == range(3)
    assert plan.find("more", 0).number == 2
    assert plan.find("more", 1) is None
    longer = Plan.of(Experiment.resolve({"aggregation": {"rule": "similarity"}, "tune": {"epochs": 1}}))
    assert [step.task for step in longer] == ["prepare", *["train"] * 5, "validate", "tune", "finalise"]
    assert longer.training == range(1, 6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"network": {"encoder": "vit_small"}, "images": {"image_size": 40}}, "choose a multiple"),
        ({"phases": [{"name": "pretrain", "contrastive": {"method": "moco_v2"}}]}, "network.contrast"),
        (
            {
                "network": {"contrast": {"layout": "simclr"}},
                "phases": [{"name": "first"}, {"name": "then", "contrastive": {"method": "simclr"}}],
            },
            "pre-train first",
        ),
        (
            {
                "network": {"contrast": {"layout": "simclr"}},
                "phases": [{"name": "blind", "contrastive": {"method": "simclr"}, "label_share": 0.5}],
            },
            "uses no labels",
        ),
        (
            {
                "network": {"contrast": {"layout": "simclr"}},
                "phases": [{"name": "blind", "contrastive": {"method": "simclr"}}],
                "tune": {"epochs": 1},
            },
            "nothing to tune",
        ),
        ({"row": "oct_fedavg", "grades": 4}, "keep classes alone"),
        ({"row": "oct_fedavg", "classes": ["a", "b", "a"]}, "names a class twice"),
        ({"row": "oct_moco_scaffold", "correction": {"name": "moon"}}, "contrast of its own"),
        ({"images": {"modality": "x-ray"}}, "images.modality: it is 'x-ray', but may be 'fundus', 'oct'"),
        (
            {"images": {"mask_borders": False}},
            "images.mask_borders: 'fundus' does not read it, 'oct' alone does: leave it out",
        ),
        (
            {
                "network": {"contrast": {"layout": "simclr"}},
                "phases": [{"name": "blind", "contrastive": {"method": "simclr"}}],
                "choice": {"window": 3},
                "augment": {"flip": False},
            },
            "no phase trains with labels, so nothing reads augment and choice",
        ),
        ({"network": {"contrast": {"width": 64}}}, "set network.contrast to null"),
        ({"row": "oct_moco_fedavg", "phases": [{"name": "train"}]}, "set network.contrast to null"),
        (
            {
                "row": "oct_simclr_fedavg",
                "phases": [{"name": "pretrain", "augment": {"flip": False}}, {"name": "train"}],
            },
            "phase 'pretrain' trains without labels and does not read augment: say in views",
        ),
        (
            {"row": "fedprox", "exchange": {"personal": "everything"}},
            "correction 'fedprox' .* set correction to 'none'",
        ),
        *(
            ({"row": "scaffold", "correction": {"update": update}, **where}, f"'{update}' is .*use 'mean_grad'")
            for update, words in (
                ("option2", {"momentum": 0.9}),
                ("option2", {"weight_decay": 0.1}),
                ("option2", {"optimizer": "adam"}),
                ("option2_fednova", {"optimizer": "adam"}),
            )
            for where in ({"training": words}, {"phases": [{"name": "first"}, {"name": "train", "training": words}]})
        ),
        ({"row": "fedap", "exchange": {"personal": "everything"}}, "aggregation.rule 'similarity' mixes a model"),
        (
            {"row": "fedavg", "exchange": {"personal": "everything", "batchnorm": "shared_all"}},
            "exchange.batchnorm: personal 'everything' does not read it, 'nothing', 'bias', 'exits' and 'head' do",
        ),
        ({"row": "fedavg", "theta": {"reference_grades": 5}}, "reads u as K / S, but evaluation.estimator 'softmax'"),
        ({"sampling": {"fraction": 0.5}, "choice": {"window": 3}}, "a run ends with its last model: leave one"),
        ({"sampling": {"fraction": 0.5}, "choice": {"by": "auc"}}, "says which validation AUC .* leave one"),
        ({"row": "singleset", "referral_curve": True}, "no model answers that learned from all sites"),
        ({"training": {"optimizer_state": "keep"}}, "sgd without momentum has no state: set momentum"),
        (
            {
                "quorum": 5,
                "aggregation": {"robust": {"name": "norm_bound", "limit": 1.0, "hostile": 2}},
            },
            "hostile is 2, but a limit holds",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_way_out(words, said):
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve(words)


def test_the_last_model_of_a_recipe_goes_with_sampling():
    found = Experiment.resolve({"row": "fedavg", "recipe": "small_sites", "sampling": {"fraction": 0.5}})
    assert found.choice.model == "last"


def test_what_a_row_says_falls_away_where_the_jobs_choice_does_not_read_it():
    assert Experiment.resolve({"row": "fedavg"}).exchange.batchnorm == "shared_all"
    alone = Experiment.resolve({"row": "fedavg", "exchange": {"personal": "everything"}})
    assert alone.exchange.batchnorm == "local_all"
    answered = Experiment.resolve({"row": "feduaa", "evaluation": {"estimator": "softmax"}}).evaluation
    assert answered.auc_input == "logits_softmax"


def test_a_phase_is_filled_from_the_rows_phase_of_its_name_and_the_runs_settings():
    found = Experiment.resolve(
        {
            "row": "oct_moco_scaffold",
            "training": {"threads": 3},
            "phases": [
                {"name": "pretrain", "rounds": 7, "training": {"epochs": 2}},
                {"name": "train", "training": {"batch_size": 4}},
            ],
        }
    )
    first, second = (found.phase(name) for name in ("pretrain", "train"))
    assert (first.rounds, first.contrastive.method, first.training.epochs) == (7, "moco_v2", 2)
    assert (first.training.momentum, first.training.threads) == (0.9, 3)
    assert (second.training.optimizer, second.training.batch_size, second.training.encoder_factor) == ("adam", 4, 0.1)
    assert Experiment.model_validate(found.agreed()).agreed() == found.agreed()
    assert found.phase("validate").name == "train"  # a step between phases has the last one's settings


def test_random_transforms_that_spoil_a_modality_are_refused():
    with pytest.raises(SettingsError, match="flip, rotate_degrees would spoil samples of heart_sound"):
        Experiment.resolve({"images": {"modality": "heart_sound"}})
    still = {"flip": False, "rotate_degrees": 0}
    kept = Experiment.resolve({"images": {"modality": "heart_sound"}, "augment": still})
    assert kept.images.modality == "heart_sound"
    words = {"images": {"modality": "activity"}, "augment": still, "network": {"encoder": "vit_small"}}
    with pytest.raises(SettingsError, match="samples are 1 x 1000: choose another encoder"):
        Experiment.resolve(words)


@pytest.mark.parametrize(
    ("asked", "images"),
    [
        ({"image_size": 64}, {"modality": "oct", "image_size": 64, "mask_borders": False}),
        ({"modality": "oct"}, {"modality": "oct", "mask_borders": False}),
        ("oct", {"modality": "oct", "mask_borders": False}),
        ({"modality": "fundus", "crop": False}, {"modality": "fundus", "crop": False}),
        ("fundus", {"modality": "fundus"}),
    ],
)
def test_another_modality_leaves_nothing_of_the_rows(asked, images):
    over = {"images": asked}
    assert merged({"images": {"modality": "oct", "mask_borders": False}}, over) == {"images": images}
    assert merged({"images": {"image_size": 32}}, {"images": "oct"}) == {
        "images": {"image_size": 32, "modality": "oct"}
    }


def test_other_layers_of_a_contrastive_head_leave_nothing_of_the_rows():
    found = merged({"contrast": {"layout": "moco_v3", "hidden": 64}}, {"contrast": {"layout": "simclr"}})
    assert found == {"contrast": {"layout": "simclr"}}
    # Of a head it is a plain setting, and what both of its values read stays.
    head = merged({"head": {"layout": "linear", "start": "ridge"}}, {"head": {"layout": "linear_bn_relu_linear"}})
    assert head == {"head": {"layout": "linear_bn_relu_linear"}}
