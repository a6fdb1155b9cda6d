import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsdae_core.hashing import fold_key, keyed_hash, keyed_permutation, keyed_uniform


def test_hashes_of_key_zero_are_the_published_splitmix64_stream():
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert keyed_hash(0, np.arange(3)).tolist() == expected


@given(st.integers(), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_an_array_gives_the_same_hashes_as_its_elements(key, counters):
    array = np.asarray(counters, dtype=np.int64)
    single = [int(keyed_hash(key, counter, 7)) for counter in counters]
    assert keyed_hash(key, array, 7).tolist() == single


def test_keys_do_not_collide_across_boundaries_names_or_order():
    keys = [
        fold_key(*parts)
        for parts in ((1, 23), (12, 3), (3, 12), ("a", 1), ("b", 1), (1,), ("ab",), ("a", "b"))
    ]
    assert len(set(keys)) == len(keys)


def test_uniform_numbers_fill_the_unit_interval_evenly():
    numbers = keyed_uniform(fold_key("test", 5), np.arange(100_000), 3)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 44  # chi-square, 19 degrees, p = 0.001
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01


@given(st.integers(0, 300), st.integers(), st.integers())
def test_a_permutation_holds_every_index_once_and_repeats(n, seed, epoch):
    order = keyed_permutation(n, seed, epoch)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))
    assert np.array_equal(order, keyed_permutation(n, seed, epoch))


def test_permutations_of_other_keys_differ():
    assert not np.array_equal(keyed_permutation(50, 1, 2), keyed_permutation(50, 2, 1))
    with pytest.raises(ValueError, match="n >= 0"):
        keyed_permutation(-1, 0)
