"""Signatures against datasketch, value by value."""

from __future__ import annotations

import numpy as np
import pytest
from datasketch import MinHash

from hf_glm_curriculum.attention.encoders import minhash_signatures
from hf_glm_curriculum.attention.minhash import EMPTY, Permutations, equal_values
from hf_glm_curriculum.errors import ConfigError


def by_datasketch(sets, num_perm, seed, scheme):
    found = []
    for members in sets:
        sketch = MinHash(num_perm=num_perm, seed=seed, scheme=scheme)
        for member in members:
            sketch.update(str(member).encode("utf8"))
        found.append(sketch.hashvalues)
    return np.array(found)


@pytest.mark.parametrize("scheme", ["legacy", "affine32"])
@pytest.mark.parametrize(("n", "window"), [(1, 128), (60, 7), (300, 40), (5, 0), (9, 300)])
def test_windows_are_bit_equal(scheme, n, window):
    windows = [range(max(0, i - window), min(n, i + window + 1)) for i in range(n)]
    expected = by_datasketch(windows, 128, 1, scheme)
    found = minhash_signatures(n, window, scheme=scheme)
    assert found.shape == (n, 128)
    np.testing.assert_array_equal(found, expected)


def test_places_around_the_seams_of_pieces_are_bit_equal():
    found = minhash_signatures(6000, 128, num_perm=16, seed=3, scheme="affine32")
    places = [0, 127, 128, 1919, 1920, 2047, 2048, 2049, 2176, 4095, 4096, 5871, 5999]
    windows = [range(max(0, i - 128), min(6000, i + 129)) for i in places]
    np.testing.assert_array_equal(found[places], by_datasketch(windows, 16, 3, "affine32"))


def test_the_default_is_the_scheme_of_the_article():
    np.testing.assert_array_equal(
        minhash_signatures(3, 1), by_datasketch([[0, 1], [0, 1, 2], [1, 2]], 128, 1, "legacy")
    )


@pytest.mark.parametrize("scheme", ["legacy", "affine32"])
def test_sets_are_bit_equal_to_bulk(scheme):
    rng = np.random.default_rng(0)
    sets = [rng.choice(5000, size, replace=False) for size in (0, 1, 70, 3, 0, 900, 5)]
    sketches = MinHash.bulk(
        [[str(member).encode() for member in members] for members in sets], scheme=scheme, seed=5
    )
    bounds = np.cumsum([0, *map(len, sets)])
    found = Permutations(128, 5, scheme).set_signatures(np.concatenate(sets), bounds)
    np.testing.assert_array_equal(found, [sketch.hashvalues for sketch in sketches])
    assert (found[0] == EMPTY).all()


def test_many_sets_are_taken_in_pieces():
    members = np.arange(100_000) % 997
    bounds = np.arange(0, 100_001, 10)
    found = Permutations(8).set_signatures(members, bounds)
    sets = members.reshape(-1, 10)[::1000]
    np.testing.assert_array_equal(found[::1000], by_datasketch(sets, 8, 1, "affine32"))


def test_equal_values_estimate_jaccard_as_datasketch_does():
    sets = [range(0, 50), range(25, 75), range(200, 220), []]
    sketches = [MinHash(scheme="affine32") for _ in sets]
    for sketch, members in zip(sketches, sets, strict=True):
        for member in members:
            sketch.update(str(member).encode())
    values = np.array([sketch.hashvalues for sketch in sketches])
    found = equal_values(values, values) / 128
    for i in range(3):
        for j in range(3):
            assert found[i, j] == sketches[i].jaccard(sketches[j])
    assert (found[3] == 0).all(), "an empty set has no neighbours, not even another empty set"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": -1}, "n and window"),
        ({"n": 3, "window": -2}, "n and window"),
        ({"n": 3, "scheme": "affine64"}, "minhash_scheme"),
        ({"n": 3, "num_perm": 0}, "num_perm"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        minhash_signatures(**arguments)


def test_no_positions_are_no_rows():
    assert minhash_signatures(0).shape == (0, 128)
