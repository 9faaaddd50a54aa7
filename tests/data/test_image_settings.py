import pytest
from pydantic import BaseModel, ValidationError

from fedretina.data.fundus_settings import FundusSettings
from fedretina.data.image_settings import ImageSettings
from fedretina.data.oct_settings import OctSettings


class Job(BaseModel):
    images: ImageSettings = FundusSettings()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({}, FundusSettings),
        ({"crop": False}, FundusSettings),
        ({"modality": "fundus"}, FundusSettings),
        ({"modality": "oct", "image_size": 64}, OctSettings),
        (OctSettings(), OctSettings),
    ],
)
def test_the_modality_chooses_and_fundus_is_meant_where_it_is_missing(words, kind):
    job = Job(images=words)
    assert type(job.images) is kind
    assert Job.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"modality": "xray"}, "modality must be 'fundus' or 'oct'"),
        ({"modality": "oct", "crop": True}, "Extra inputs"),
        ({"image_size": 8}, "greater than or equal to 32"),
        (5, "FundusSettings"),
    ],
)
def test_words_that_cannot_be_used(words, message):
    with pytest.raises(ValidationError, match=message):
        Job(images=words)


def test_digests():
    # As before there was a modality: caches of fundus photographs stay valid.
    assert FundusSettings().digest() == "6db2189064f3c93aef56d28a7919f1b9eecaa3837bd114fe9fb888f4de862a6d"
    every = [FundusSettings(), OctSettings(), OctSettings(mask_borders=False), OctSettings(image_size=64)]
    assert len({settings.digest() for settings in every}) == 4
