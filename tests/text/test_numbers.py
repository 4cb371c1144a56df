"""Numbers in text and the one that is the answer."""

import pytest

from hf_glm_curriculum.text.numbers import (
    answer_number,
    find_numbers,
    numbers_equal,
    spelled_number,
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("It costs $1,234.50 today.", [1234.5]),
        ("10 - 3 = 7", [10, 3, 7]),
        ("from -5 to +8", [-5, 8]),
        ("7-5", [7, 5]),
        ("2024-05-01", [2024, 5, 1]),
        ("H2O and CO2", []),
        ("３．５公里", [3.5]),
        ("3.5万 and 2 million", [35_000, 2_000_000]),
        ("about 3/4 of it", [0.75]),
        ("1e3 or 2.5E-1", [1000, 0.25]),
        ("1, 2, 3", [1, 2, 3]),
        ("division by zero 5/0", [5, 0]),
    ],
)
def test_numbers_whatever_their_formatting(text, values):
    assert [number.value for number in find_numbers(text)] == pytest.approx(values)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("twelve", 12),
        ("Forty-two.", 42),
        ("one hundred and five", 105),
        ("two thousand three hundred", 2300),
        ("十二", 12),
        ("一百零三", 103),
        ("两万五千", 25_000),
        ("the answer", None),
        ("", None),
    ],
)
def test_spelled_numbers(text, value):
    assert spelled_number(text) == value


@pytest.mark.parametrize(
    ("text", "ignore", "value"),
    [
        ("3 × 4 = 12, so 12 eggs.", (), 12),
        ("12 × 4 = 48, then 48 - 3 = 45.", (), 45),
        ("The answer is 5 km, since 1 km is 1000 m.", (), 5),
        ("The answer is 2 + 3 = 5.", (), 5),
        ("There are 29 days in February 2024.", (2024,), 29),
        ("Work: 3 + 4\n#### 7", (), 7),
        ("答案是十二。", (), 12),
        ("所以一共42个苹果。", (), 42),
        ("forty", (), 40),
    ],
)
def test_the_answer_among_several_numbers(text, ignore, value):
    found = answer_number(text, ignore)
    assert found is not None
    assert found.value == value


def test_no_number_and_only_stated_numbers_give_none():
    assert answer_number("I do not know.") is None
    assert answer_number("You said 5 and 6.", (5, 6)) is None


def test_percent_reads_both_ways_and_tolerance_is_absolute():
    (percent,) = find_numbers("50%")
    assert numbers_equal(percent, 50)
    assert numbers_equal(percent, 0.5)
    (third,) = find_numbers("0.33")
    assert numbers_equal(third, 1 / 3, tolerance=0.005)
    assert not numbers_equal(third, 1 / 3)
