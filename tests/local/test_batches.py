"""Batches of an epoch: each image once, in an order that the purpose decides."""

import numpy as np
import pytest

from fedretina.errors import TrainingError
from fedretina.local.supervised import batches, batches_an_epoch, require_a_batch
from fedretina.settings.training import TrainingSettings


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("images", [0, 1, 7, 8, 9, 10, 24, 25])
def test_the_count_is_that_of_the_batches(images, drop_last):
    settings = TrainingSettings(batch_size=8, drop_last=drop_last)
    found = list(batches(images, settings, (1, "a")))
    assert len(found) == batches_an_epoch(images, 8, drop_last)
    together = np.concatenate([*found, np.zeros(0, dtype=np.int64)])
    assert len(set(together.tolist())) == len(together)  # none twice
    assert all(len(one) > 1 for one in found)  # a batch of one has no variance


def test_the_purpose_decides_the_order():
    settings = TrainingSettings(batch_size=4)
    first, again, other = (np.concatenate(list(batches(12, settings, (1, "a", epoch)))).tolist() for epoch in (0, 0, 1))
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other) == list(range(12))


def test_fewer_images_than_a_batch_are_refused():
    require_a_batch(8, TrainingSettings(batch_size=8))
    with pytest.raises(TrainingError, match="training images are fewer than one batch of 8") as told:
        require_a_batch(7, TrainingSettings(batch_size=8))
    assert "7" not in str(told.value)  # a site may hold its number of images back
    assert told.value.notes == ("There are 7 training images.",)
