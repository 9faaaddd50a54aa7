from collections import deque

import pytest
import torch

from fedretina.contrastive.key_network import KeyQueue, queue_length

CPU = torch.device("cpu")


def key(number):
    return torch.tensor([float(number), -float(number)])


def take(queue, numbers):
    at = torch.tensor(numbers)
    queue.enqueue(torch.stack([key(n) for n in numbers]), at, at // 2)


@pytest.mark.parametrize(
    ("most", "images", "batch", "length"),
    [(65536, 3500, 64, 3456), (128, 3500, 64, 128), (65536, 64, 64, 64), (65536, 63, 64, 0), (5, 12, 4, 5)],
)
def test_it_is_never_longer_than_an_epoch(most, images, batch, length):
    assert queue_length(most, images, batch) == length


@pytest.mark.parametrize("batches", [[2, 2, 2, 2], [3, 3, 3], [5, 5], [7], [1, 12, 4], [6]])
def test_it_holds_the_latest_first_in_first_out(batches):
    queue, slow = KeyQueue(5, 2, CPU), deque(maxlen=5)
    numbers = iter(range(100))
    for size in batches:
        batch = [next(numbers) for _ in range(size)]
        take(queue, batch)
        slow.extend(batch)
        held = [n for n in queue.images.tolist() if n >= 0]
        assert sorted(held) == sorted(slow)
        for place, number in enumerate(queue.images.tolist()):
            if number >= 0:
                assert torch.equal(queue.rows[place], key(number))
                assert queue.patients[place] == number // 2
        if len(slow) == 5:
            assert queue.images[queue.at] == slow[0]  # the next to go is the oldest


def test_the_pointer_wraps_to_the_start():
    queue = KeyQueue(4, 2, CPU)
    assert [queue.at, *(take(queue, [n, n + 1]) or queue.at for n in (0, 2, 4))] == [0, 2, 0, 2]
    assert queue.images.tolist() == [4, 5, 2, 3]


def test_a_loss_before_can_be_differentiated_after():
    queue = KeyQueue(3, 2, CPU)
    take(queue, [1, 2, 3])
    query = torch.ones(1, 2, requires_grad=True)
    loss = (query @ queue.rows.T).square().sum()
    before = queue.rows.clone()
    take(queue, [7])
    loss.backward()
    torch.testing.assert_close(query.grad, 2 * torch.ones(1, 2) @ before.T @ before)


def test_no_gradient_comes_in():
    queue = KeyQueue(3, 2, CPU)
    at = torch.tensor([0])
    queue.enqueue(torch.ones(1, 2, requires_grad=True), at, at)
    assert not queue.rows.requires_grad


def test_empty_rows_same_images_and_same_patients_are_no_negatives():
    queue = KeyQueue(4, 2, CPU)
    take(queue, [2, 3, 6])  # patients 1, 1, 3
    images, patients = torch.tensor([2, 7]), torch.tensor([1, 3])
    assert queue.no_negatives(images, patients, True).tolist() == [
        [True, True, False, True],
        [False, False, True, True],
    ]
    assert queue.no_negatives(images, patients, False).tolist() == [
        [True, False, False, True],
        [False, False, False, True],
    ]


def test_memory_goes_round():
    queue = KeyQueue(4, 2, CPU)
    take(queue, [2, 3, 6])
    memory = queue.memory()
    kept = {name: value.clone() for name, value in memory.items()}
    assert sorted(memory) == ["queue:at", "queue:images", "queue:patients", "queue:rows"]
    other = KeyQueue(4, 2, CPU)
    other.recall(memory)
    take(queue, [8, 9])
    take(other, [8, 9])
    assert other.at == queue.at == 1
    assert torch.equal(other.rows, queue.rows)
    assert torch.equal(other.images, queue.images)
    assert all(torch.equal(memory[name], value) for name, value in kept.items())


@pytest.mark.parametrize("memory", [{}, KeyQueue(3, 2, CPU).memory(), KeyQueue(4, 5, CPU).memory()])
def test_a_queue_of_another_size_is_left_out(memory):
    queue = KeyQueue(4, 2, CPU)
    queue.recall(memory)
    assert queue.rows.shape == (4, 2)
    assert (queue.images == -1).all()
