"""Near duplicates: signatures are datasketch's, candidates its LSH's, verdicts exact."""

import random

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import given
from hypothesis import strategies as st

from hf_glm_curriculum.data.audit_duplicates import (
    candidate_pairs,
    jaccard,
    near_duplicate,
    shingles,
    signatures,
)

LINE = "the river runs slowly past old houses where people grow apples pears and plums"
WORDS = LINE.split()


def random_texts(count, seed=0, edits=1):
    """Texts of which each odd one is its predecessor with a few words changed."""
    random_ = random.Random(seed)
    texts = []
    for _ in range(count // 2):
        words = random_.choices(WORDS, k=40)
        texts.append(" ".join(words))
        for _ in range(edits):
            words[random_.randrange(40)] = "granite"
        texts.append(" ".join(words))
    return texts


def test_signatures_are_datasketch_minhashes():
    texts = ["some text to hash", "一段中文文字", ""]
    for text, found in zip(texts, signatures(texts, 32, seed=3), strict=True):
        sketch = MinHash(num_perm=32, seed=3, hashfunc=int, scheme="affine32")
        sketch.update_batch(shingles(text).tolist())
        assert np.array_equal(found, sketch.hashvalues)


def test_candidates_are_those_of_datasketch_lsh():
    texts = random_texts(200)
    table = np.stack(list(signatures(texts, 64, seed=1)))
    lsh = MinHashLSH(threshold=0.8, num_perm=64)
    expected = set()
    for row, values in enumerate(table):
        sketch = MinHash(hashvalues=values, scheme="affine32", hashfunc=int)
        expected |= {(row, other) for other in lsh.query(sketch)}
        lsh.insert(row, sketch)
    # Pairs that share a band by chance only are dropped by their estimated similarity.
    alike = {(a, b) for a, b in expected if (table[a] == table[b]).mean() >= 0.8 - 0.15}
    found = {tuple(pair) for pair in candidate_pairs(table, 0.8).tolist()}
    assert found == alike
    assert len({pair for pair in found if pair[0] == pair[1] + 1}) > 80


def test_pairs_stay_linear_in_a_large_group():
    table = np.zeros((5000, 64), np.uint32)
    assert len(candidate_pairs(table, 0.8)) <= 2 * 5000
    assert candidate_pairs(table[:1], 0.8).shape == (0, 2)


@given(
    st.text(alphabet="abc ", min_size=5, max_size=60),
    st.text(alphabet="abc ", min_size=5, max_size=60),
)
def test_jaccard_is_that_of_the_sets_of_pieces(first, second):
    def pieces(text):
        return {text[i : i + 5] for i in range(len(text) - 4)}

    one, two = pieces(first), pieces(second)
    assert jaccard(first, second) == pytest.approx(len(one & two) / len(one | two))


LONG = f"This passage tells of a place: {LINE}. " * 4
ADA = ("Who was Ada Lovelace, the first programmer?", "A mathematician who wrote programs.")
ADA_AGAIN = ("Who was Ada Lovelace , the first programmer ?", "A mathematician, who wrote programs")


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (("Describe it.", LONG), ("Describe it!", LONG.replace("old", "very old")), True),
        (ADA, ADA_AGAIN, True),
        # another number or another filling of a template is another question
        ((LONG + "What is 12 + 31?", "A sum."), (LONG + "What is 12 + 37?", "A sum."), False),
        ((LONG + "Is anger positive?", "No."), (LONG + "Is envy positive?", "No."), False),
        ((LONG + "Who?", "People."), (LONG + "Who?", "Nobody at all."), False),
        # a long answer given twice is a duplicate whatever was asked
        (("What is said of the apples?", LONG), ("What is said of the plums?", LONG), True),
        (
            ("Describe it.", LONG + "It has 3 bends."),
            ("Describe it.", LONG + "It has 4 bends."),
            False,
        ),
    ],
)
def test_verdicts(first, second, found):
    assert (near_duplicate(first, second, 0.8) is not None) == found
    assert (near_duplicate(second, first, 0.8) is not None) == found


@given(st.lists(st.text(max_size=40), max_size=5), st.integers(0, 5))
def test_any_text_has_datasketch_s_signature(texts, seed):
    pieces = [shingles(text).tolist() for text in texts]
    sketches = MinHash.generator(pieces, num_perm=16, seed=seed, hashfunc=int, scheme="affine32")
    for ours, sketch in zip(signatures(texts, 16, seed), sketches, strict=True):
        assert ours.dtype == np.uint32 and np.array_equal(ours, sketch.hashvalues)
