"""Analysis of instruction sets: heaps, readings, bands."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_glm_curriculum.curriculum.analysis import analyse
from hf_glm_curriculum.curriculum.entropy_bands import Band, draw_bands, parse_bands
from hf_glm_curriculum.curriculum.modality import bimodality_coefficient, dip, modality
from hf_glm_curriculum.curriculum.readings import read_instructions, template_of
from hf_glm_curriculum.curriculum.text_entropy import character_entropy, shannon_entropy
from hf_glm_curriculum.errors import ConfigError, DataError


def test_shannon_entropy_of_known_texts():
    assert shannon_entropy("aaaa") == 0.0 and shannon_entropy([]) == 0.0
    assert character_entropy("abab") == pytest.approx(1.0)
    assert character_entropy("abcd" * 5) == pytest.approx(2.0)
    assert character_entropy("aab") == pytest.approx(
        -(2 / 3 * math.log2(2 / 3) + math.log2(1 / 3) / 3)
    )


# -- heaps ---------------------------------------------------------------------------------------


def brute_dip(ordered):
    """Least half distance over every place of the peak, by linear programming's own definition."""
    n = len(ordered)

    def above_minorant(xs):
        heights = np.arange(len(xs)) / n
        best = 0.0
        for i in range(len(xs)):
            lines = [
                heights[a] + (heights[c] - heights[a]) * (xs[i] - xs[a]) / (xs[c] - xs[a])
                for a in range(i + 1)
                for c in range(i, len(xs))
                if xs[c] > xs[a]
            ]
            best = max(best, heights[i] - min([heights[i], *lines]))
        return best

    return max(
        0.5 / n,
        min(
            max(above_minorant(ordered[: p + 1]), above_minorant(-ordered[p:][::-1])) / 2
            for p in range(n)
        ),
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_dip_is_its_definition(seed):
    generator = np.random.default_rng(seed)
    sample = np.sort(np.r_[generator.normal(size=14), generator.normal(4, 1, size=14)])
    assert dip(sample) == pytest.approx(brute_dip(sample), abs=1e-12)


def test_one_heap_and_two_are_told_apart():
    generator = np.random.default_rng(0)
    one = (generator.normal(size=1500), generator.exponential(size=1500), generator.random(1500))
    assert not any(modality(sample).two_heaps for sample in one)
    two = np.r_[generator.normal(size=800), generator.normal(5, 1, size=700)]
    assert modality(two).two_heaps and modality(two).coefficient > 5 / 9


def test_two_points_have_the_largest_dip_and_few_numbers_none():
    assert dip(np.r_[np.zeros(200), np.ones(200)]) == pytest.approx(0.25, abs=0.01)
    for values in ([1.0, 2.0, 3.0], [5.0] * 50, []):
        found = modality(np.array(values))
        assert math.isnan(found.dip) and not found.two_heaps


def test_the_bimodality_coefficient_of_a_uniform_sample():
    assert bimodality_coefficient(np.linspace(0, 1, 20_001)) == pytest.approx(5 / 9, abs=1e-3)
    assert bimodality_coefficient(np.random.default_rng(0).normal(size=50_000)) == pytest.approx(
        1 / 3, abs=0.01
    )


# -- readings ------------------------------------------------------------------------------------

TEXTS = [
    "Write a poem about 3 ducks.",
    "Write a poem about 17 ducks.",
    "Is water wet?",
    "请把这句话翻译成英文",
]


def test_readings_are_those_of_each_text_alone():
    together = read_instructions(TEXTS, jobs=1, show_progress=False)
    for row, text in enumerate(TEXTS):
        alone = read_instructions([text], jobs=1, show_progress=False)
        assert alone.score[0] == together.score[row]
        assert alone.characters[0] == together.characters[row] == character_entropy(text)
    assert together.verbs == ["write", "write", "judge", "translate"]
    assert together.languages == ["en", "en", "en", "zh"]


@pytest.mark.slow
def test_several_processes_read_the_same():
    texts = TEXTS * 3000
    first = read_instructions(texts, jobs=1, show_progress=False)
    second = read_instructions(texts, jobs=2, show_progress=False)
    assert np.array_equal(first.score, second.score) and first.templates == second.templates


def test_templates_leave_numbers_names_and_quotations_blank():
    assert template_of(TEXTS[0]) == template_of(TEXTS[1])
    first, second = 'Translate "good day" for Anna Lee.', 'Translate "hello" for Bob.'
    assert template_of(first) == template_of(second)
    assert template_of("Write a poem.") != template_of("Write a song.")


def test_the_analysis_counts_what_there_is():
    readings = read_instructions(TEXTS, jobs=1, show_progress=False)
    found = analyse(TEXTS, readings, {"category": ["a", "a", "b", "b"]})
    assert found.templated == 0.5 and found.templates[0][1] == 2
    assert found.languages == {"en": 3, "zh": 1} and found.labels == {"category": {"a": 2, "b": 2}}
    lowest, highest = found.lowest[0], found.highest[0]
    assert lowest[1] == readings.score[lowest[0]] == readings.score.min()
    assert highest[1] == readings.score[highest[0]] == readings.score.max()
    about = found.to_dict()
    assert sum(about["entropy"]["instruction"]["histogram"]["counts"]) == 4
    assert 0 <= about["article_bands_of_character_entropy"]["3.2–4.1"] <= 1
    with pytest.raises(DataError, match="one instruction at least"):
        analyse([], read_instructions([], jobs=1, show_progress=False))


# -- bands ---------------------------------------------------------------------------------------

SCORES = np.r_[np.full(10, 1.0), np.full(30, 5.0)]
HALVES = [Band(0, 2, 0.5), Band(2, 9, 0.5)]


def test_without_repeats_the_scarcest_band_sets_the_size():
    found = draw_bands(SCORES, HALVES)
    assert found.drawn == [10, 10] and found.repeated == 0 and found.left_out == 20
    assert len(np.unique(found.rows)) == 20 and (np.diff(found.rows) > 0).all()
    assert np.array_equal(found.rows, draw_bands(SCORES, HALVES).rows)
    assert not np.array_equal(found.rows, draw_bands(SCORES, HALVES, seed=1).rows)


def test_with_repeats_every_row_comes_before_any_comes_again():
    found = draw_bands(SCORES, HALVES, size=50, repeat=True)
    counts = np.bincount(found.rows, minlength=40)
    assert found.drawn == [25, 25] and set(counts[:10]) == {2, 3} and set(counts[10:]) <= {0, 1}
    assert found.repeated == 15 and found.left_out == 5


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
    st.floats(0, 1),
    st.integers(1, 100),
    st.booleans(),
)
def test_a_draw_keeps_its_word(scores, share, size, repeat):
    bands = [Band(-1, 5, share), Band(5, 11, 1 - share)]
    try:
        found = draw_bands(np.array(scores), bands, size, repeat)
    except DataError:
        low = sum(score < 5 for score in scores)
        assert (share > 0 and low == 0) or (share < 1 and low == len(scores))
        return
    assert sum(found.drawn) == len(found.rows) == sum(found.asked)
    assert len(found.rows) == size if repeat else len(found.rows) <= min(size, len(scores))
    assert len(scores) - len(set(found.rows.tolist())) == found.left_out


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["8-14=1"], "must be LOW:HIGH=SHARE"),
        (["8:4=1"], "low must be below high"),
        (["1:5=0.5", "4:9=0.5"], "must not overlap"),
        (["1:5=0.5", "5:9=0.4"], "must sum to 1, got 0.9"),
        (["1:5=1.5"], "a share lies in"),
        ([], "one band at least"),
    ],
)
def test_bad_bands_are_named(texts, words):
    with pytest.raises(ConfigError, match=words):
        parse_bands(texts)


def test_a_band_without_rows_says_where_the_data_are():
    with pytest.raises(DataError, match=r"no row lies in 20:30, the data are 1.00 … 5.00"):
        draw_bands(SCORES, [Band(0, 9, 0.5), Band(20, 30, 0.5)])
    assert parse_bands(["-inf:5=0.25", "5:inf=0.75"])[1].high == math.inf
