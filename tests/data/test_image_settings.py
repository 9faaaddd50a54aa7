import pytest
from pydantic import BaseModel, SerializeAsAny, ValidationError

from fedretina.settings.images import (
    ActivitySettings,
    DermoscopySettings,
    FundusSettings,
    HeartSoundSettings,
    ImageSettings,
    OctSettings,
    image_settings,
)

MODALITIES = list(ImageSettings.choices())


class Job(BaseModel):
    images: SerializeAsAny[ImageSettings] = FundusSettings()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({}, FundusSettings),
        ({"crop": False}, FundusSettings),
        ({"modality": "fundus"}, FundusSettings),
        ({"modality": "oct", "image_size": 64}, OctSettings),
        ("oct", OctSettings),
        (OctSettings(), OctSettings),
        ({"modality": "dermoscopy"}, DermoscopySettings),
        ({"modality": "heart_sound", "top_hz": 500}, HeartSoundSettings),
        ({"modality": "activity", "length": 512}, ActivitySettings),
    ],
)
def test_the_modality_chooses_and_fundus_is_meant_where_it_is_missing(words, kind):
    job = Job(images=words)
    assert type(job.images) is kind
    assert Job.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"modality": "xray"}, "it is 'xray', but may be 'fundus', 'oct', 'dermoscopy', 'heart_sound', 'activity'"),
        ({"modality": "oct", "crop": True}, "'oct' does not read it, 'fundus' alone does"),
        ({"modality": "activity", "image_size": 64}, "'activity' does not read it, 'fundus', 'oct'"),
        ({"image_size": 8}, "greater than or equal to 32"),
        (5, "ImageSettings"),
    ],
)
def test_words_that_cannot_be_used(words, message):
    with pytest.raises(ValidationError, match=message):
        Job(images=words)


def test_digests():
    # As before there was a modality: caches of fundus photographs stay valid.
    assert FundusSettings().digest() == "6db2189064f3c93aef56d28a7919f1b9eecaa3837bd114fe9fb888f4de862a6d"
    assert OctSettings().digest() == "4b272ce63f00dbbc9aac3d6c0abb553d85f87af26552daefb314fcea91093b11"
    every = [FundusSettings(), OctSettings(), OctSettings(mask_borders=False), OctSettings(image_size=64)]
    assert len({settings.digest() for settings in every}) == 4
    assert len({image_settings(kind).digest() for kind in MODALITIES}) == len(MODALITIES)


def test_shapes():
    assert FundusSettings(image_size=64).shape == OctSettings(image_size=64).shape == (3, 64, 64)
    assert [image_settings(kind, 48).shape for kind in MODALITIES] == [(3, 48, 48)] * 4 + [(3, 1, 1000)]
    assert [image_settings(kind).modality for kind in MODALITIES] == MODALITIES
