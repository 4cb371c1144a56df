"""Instruction entropy: parts, tables, fitting, files, and what no text may do to it."""

import gzip
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_glm_curriculum import InstructionEntropyEstimator
from hf_glm_curriculum.curriculum.background import (
    MOST_BITS,
    BackgroundTable,
    document_bits,
    read_table,
    unit_surprisal,
)
from hf_glm_curriculum.curriculum.ngram_counts import NgramCounts, ngram_hashes
from hf_glm_curriculum.errors import ConfigError, DataError, StateError

OPEN = "Write a story about a lighthouse keeper."
CLOSED = "Is 7 a prime number? Answer yes or no."


@pytest.fixture(scope="module")
def estimator():
    return InstructionEntropyEstimator()


def test_the_score_is_the_sum_of_its_two_parts(estimator):
    parts = estimator.parts([OPEN, CLOSED])
    assert estimator.score([OPEN, CLOSED]).tolist() == pytest.approx(parts.sum(1).tolist())
    weighted = InstructionEntropyEstimator(surprisal_weight=0.5, breadth_weight=2.0)
    expected = 0.5 * parts[:, 0] + 2.0 * parts[:, 1]
    assert weighted.score([OPEN, CLOSED]).tolist() == pytest.approx(expected.tolist())


def test_by_hand(estimator):
    """Two words: two single units and one pair, whose frequency is the product of theirs."""
    one, two = (-read_table("words_en")[word] / 100 for word in ("write", "poetry"))
    shares = [1 - math.exp(-64 * 2.0**bits) for bits in (one, two, one + two)]
    bits = [min(-math.log2(share), MOST_BITS) for share in shares]
    expected = sum(bits) / 3 + math.log2(1 + 10)
    assert estimator.score(["Write poetry"])[0] == pytest.approx(expected, abs=1e-9)


def test_open_instructions_score_above_closed_ones(estimator):
    pairs = (
        (OPEN, CLOSED),
        ("Give advice to someone who moves abroad.", "Classify the mail as spam or not spam."),
        ("请写一篇关于大海的散文", "3+5等于多少？"),
        ("谈谈你对人工智能的看法", "判断下面的句子是否正确"),
    )
    for more, less in pairs:
        first, second = estimator.parts([more, less])[:, 1]
        assert first > second, (more, less)


def test_rarer_words_score_higher_and_the_order_of_texts_does_not_matter(estimator):
    texts = [f"Describe the {word}." for word in ("time", "table", "telescope", "thylacine")]
    scores = estimator.score(texts)
    assert (np.diff(scores) > 0).all()
    assert estimator.score(texts[::-1]).tolist() == scores[::-1].tolist()


def test_numbers_are_one_word(estimator):
    assert estimator.score(["What is 12 + 7?"]) == estimator.score(["What is 48 + 9?"])
    assert unit_surprisal("1749") == unit_surprisal("2")


def test_a_known_chinese_word_is_less_surprising_than_its_characters_by_chance():
    known, chance = (BackgroundTable().bits(list(text))[1][0] for text in ("我们", "们我"))
    assert known < chance


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_has_a_finite_score_and_an_explanation(text):
    estimator = InstructionEntropyEstimator()
    (score,) = estimator.score([text])
    assert math.isfinite(score) and 0 <= score <= MOST_BITS + math.log2(60)
    assert estimator.explain(text)["score"] == pytest.approx(score)


def test_explain_says_what_a_reader_asks(estimator):
    found = estimator.explain("Please translate the treaty into Klingon.")
    assert (found["verb"], found["senses"], found["language"]) == ("translate", 10, "en")
    assert found["rarest"][0][0] in ("klingon", "treaty") and found["rule"] == "imperative"
    assert found["background"] == "bundled tables" and found["answers"] is None
    closed = estimator.explain(CLOSED)
    assert closed["answers"] == 2 and closed["breadth"] == pytest.approx(math.log2(3))


def test_bits_fall_with_frequency_and_stay_within_bounds():
    bits = document_bits(np.array([0.0, 1.0, 10.0, 20.0, 200.0]))
    assert (np.diff(bits) >= 0).all() and bits[0] >= 0 and bits[-1] == MOST_BITS


# -- fitting -------------------------------------------------------------------------------------

CORPUS = ["the cat sat", "the dog sat", "the cat ran", "a bird sang at dawn"]


def test_fitted_bits_are_the_counted_document_frequencies():
    fitted = InstructionEntropyEstimator().fit(CORPUS, show_progress=False)
    assert fitted.documents == 4
    bits = fitted._bits(["the", "cat", "sat"])
    found = [part.tolist() for part in bits]
    idf = lambda count: math.log2(5 / (count + 1))  # noqa: E731
    assert found[0] == pytest.approx([idf(3), idf(2), idf(2)], abs=1e-3)
    assert found[1] == pytest.approx([idf(2), idf(1)], abs=1e-3)
    assert found[2] == pytest.approx([idf(1)], abs=1e-3)


def test_a_repeated_word_counts_once_a_document_and_fitting_goes_on():
    once = InstructionEntropyEstimator().fit(["echo echo echo", "quiet"], show_progress=False)
    assert once._bits(["echo"])[0][0] == pytest.approx(math.log2(3 / 2), abs=1e-3)
    once.fit(iter(["echo"]), show_progress=False)
    assert once.documents == 3
    assert once._bits(["echo"])[0][0] == pytest.approx(math.log2(4 / 3), abs=1e-3)


def test_memory_is_fixed_and_the_error_stays_small_in_a_narrow_sketch():
    """8,000 different words in 4,096 cells: frequent words keep their counts."""
    generator = np.random.default_rng(0)
    counts = NgramCounts(width=4096)
    size = counts._cells.nbytes
    for _ in range(40):
        rare = generator.integers(0, 8000, size=(50, 1))
        counts.add([[f"r{word}" for word in row] + ["common"] for row in rare])
    assert counts._cells.nbytes == size
    hashes = ngram_hashes(["common", "never"])[0]
    common, never = counts.frequency(hashes)
    assert common == pytest.approx(2000, rel=0.02)
    assert never < 20


def test_counts_come_back_from_disk_and_go_on(tmp_path):
    fitted = InstructionEntropyEstimator().fit(CORPUS, show_progress=False)
    fitted.save(tmp_path / "counts.safetensors")
    loaded = InstructionEntropyEstimator.load(tmp_path / "counts.safetensors", breadth_weight=0.0)
    texts = ["the cat sang", "nothing known"]
    assert loaded.score(texts).tolist() == fitted.parts(texts)[:, 0].tolist()
    loaded.fit(["the end"], show_progress=False)
    assert loaded.documents == 5 and "5 documents" in loaded.explain("the")["background"]


def test_bad_input_is_named(tmp_path):
    estimator = InstructionEntropyEstimator()
    with pytest.raises(DataError, match="one string"):
        estimator.score(OPEN)
    with pytest.raises(DataError, match="entry 1 must be a text, got NoneType"):
        estimator.score(["fine", None])
    with pytest.raises(DataError, match="corpus: needs one text"):
        estimator.fit([], show_progress=False)
    with pytest.raises(DataError, match="nothing was fitted"):
        estimator.save(tmp_path / "x")
    with pytest.raises(ConfigError, match="width"):
        NgramCounts(width=10)
    with pytest.raises(StateError):
        InstructionEntropyEstimator.load(tmp_path / "absent")
    (tmp_path / "torn").write_bytes(b"\x00" * 40)
    with pytest.raises(StateError):
        InstructionEntropyEstimator.load(tmp_path / "torn")


def test_an_empty_text_scores_nothing(estimator):
    assert estimator.score(["", "   ", "…"]).tolist() == [0.0, 0.0, 0.0]
    assert estimator.score([]).shape == (0,)


def test_the_tables_are_small_and_their_licences_lie_beside_them():
    from importlib import resources

    folder = resources.files("hf_glm_curriculum.curriculum") / "tables"
    names = [path.name for path in folder.iterdir() if path.name.endswith(".gz")]
    assert sum(len((folder / name).read_bytes()) for name in names) < 1_500_000
    licences = (folder / "LICENSES.txt").read_text("utf-8")
    assert all(name in licences for name in names)
    assert "WordNet 3.0 Copyright" in licences and "ShareAlike 4.0" in licences
    assert gzip.decompress((folder / names[0]).read_bytes()).count(b"\t") > 1000
