"""Geography: capitals, continents and currencies of countries, asked in several ways."""

from functools import cache
from random import Random

from hf_glm_curriculum.data.demo.countries import Country, continents, countries, with_article
from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Phrase,
    Task,
    choice_check,
    overlaps,
    phrase_check,
    wording,
)


def _pick(rng: Random, level: str, fact: str) -> Country:
    """Draw a country of the level asked for whose fact is known."""
    return rng.choice([c for c in countries() if getattr(c, fact) and c.level == level])


def _value(country: Country, fact: str) -> tuple[str, str]:
    value = getattr(country, fact)
    return value if value else ("", "")


@cache
def _rivals(country: Country, fact: str) -> tuple[Country, ...]:
    """List the countries with another value of a fact, of the same continent if there are any."""
    value = _value(country, fact)
    known = [c for c in countries() if getattr(c, fact)]
    others = [c for c in known if not overlaps(value, _value(c, fact))]
    near = [c for c in others if country.continent and c.continent == country.continent]
    return tuple(near or others)


def _other(rng: Random, country: Country, fact: str) -> Country:
    """Draw a country with another value of the fact, preferably on the same continent."""
    return rng.choice(_rivals(country, fact))


@cache
def _named_apart() -> tuple[Country, ...]:
    """List the countries whose capital does not give their name away."""
    return tuple(c for c in countries() if c.capital and not overlaps(c.name, c.capital))


def _fact(fact: str, rng: Random, level: str) -> Draw:
    country = _pick(rng, level, fact)
    answer, wrong = _value(country, fact), _value(_other(rng, country, fact), fact)
    fields = {"country": with_article(country.name)}
    return Draw(fields, answer, wrong, phrase_check(answer), country.level)


def _capital(rng: Random, level: str) -> Draw:
    return _fact("capital", rng, level)


def _currency(rng: Random, level: str) -> Draw:
    return _fact("currency", rng, level)


def _continent(rng: Random, level: str) -> Draw:
    return _fact("continent", rng, level)


def _country_of(rng: Random, level: str) -> Draw:
    country = rng.choice([c for c in _named_apart() if c.level == level])
    answer, wrong = with_article(country.name), with_article(_other(rng, country, "name").name)
    # The English article is not part of the fact.
    check = phrase_check(country.name)
    return Draw({"capital": _value(country, "capital")}, answer, wrong, check, country.level)


def _which_in(rng: Random, level: str) -> Draw:
    continent = rng.choice(continents())
    known = [c for c in countries() if c.continent]
    inside = rng.choice([c for c in known if c.continent == continent])
    outside = rng.sample(
        [c for c in known if c.continent != continent], 3 if level == "hard" else 2
    )
    options = [c.name for c in (inside, *outside)]
    rng.shuffle(options)
    fields: dict[str, Phrase] = {"continent": continent, "options": _listed(options)}
    check = choice_check(inside.name, tuple(options))
    return Draw(fields, inside.name, outside[0].name, check, level)


def _listed(options: list[tuple[str, str]]) -> tuple[str, str]:
    english, chinese = zip(*options, strict=True)
    return ", ".join(english[:-1]) + " or " + english[-1], "、".join(chinese)


def _is_capital(rng: Random, level: str) -> Draw:
    country = _pick(rng, level, "capital")
    true = rng.random() < 0.5
    named = country if true else _other(rng, country, "capital")
    yes, no = ("Yes", "是的"), ("No", "不是")
    verb, denied = ("is", "是"), ("is not", "不是")
    fields: dict[str, Phrase] = {
        "country": with_article(country.name),
        "city": _value(named, "capital"),
        "verb": verb if true else denied,
    }
    spoiled: dict[str, Phrase] = {"verb": denied if true else verb}
    answer, wrong = (yes, no) if true else (no, yes)
    return Draw(fields, answer, wrong, {"kind": "yes_no", "value": true}, level, spoiled)


def _same_continent(rng: Random, level: str) -> Draw:
    known = [c for c in countries() if c.continent]
    first = rng.choice(known)
    true = rng.random() < 0.5
    second = rng.choice(
        [c for c in known if c != first and (c.continent == first.continent) is true]
    )
    fields: dict[str, Phrase] = {"a": with_article(first.name), "b": with_article(second.name)}
    yes, no = ("Yes", "是的"), ("No", "不是")
    answer, wrong = (yes, no) if true else (no, yes)
    fields["both"] = ("they are on the same continent", "它们在同一个大洲")
    fields["apart"] = ("they are on different continents", "它们不在同一个大洲")
    fields["reason"] = fields["both"] if true else fields["apart"]
    spoiled = {"reason": fields["apart"] if true else fields["both"]}
    return Draw(fields, answer, wrong, {"kind": "yes_no", "value": true}, level, spoiled)


TASKS = (
    Task(
        "capital",
        "geography",
        _capital,
        wording(
            """
            What is the capital of {country}?
            Which city is the capital of {country}?
            Name the capital of {country}.
            Tell me the capital city of {country}.
            I forgot the capital of {country}. What is it?""",
            """
            The capital of {country} is {answer}.
            {answer} is the capital of {country}.
            It is {answer}.
            The capital is {answer}.""",
        ),
        wording(
            """
            {country}的首都是哪里？
            {country}的首都是哪座城市？
            请说出{country}的首都。
            你知道{country}的首都吗？
            哪个城市是{country}的首都？""",
            """
            {country}的首都是{answer}。
            {answer}是{country}的首都。
            首都是{answer}。""",
        ),
        weight=1.5,
    ),
    Task(
        "country_of_capital",
        "geography",
        _country_of,
        wording(
            """
            {capital} is the capital of which country?
            Which country has {capital} as its capital?
            Of which country is {capital} the capital?
            Name the country whose capital is {capital}.""",
            """
            {capital} is the capital of {answer}.
            It is the capital of {answer}.
            The country is {answer}.""",
        ),
        wording(
            """
            {capital}是哪个国家的首都？
            以{capital}为首都的是哪个国家？
            哪个国家的首都是{capital}？""",
            """
            {capital}是{answer}的首都。
            是{answer}。
            这个国家是{answer}。""",
        ),
    ),
    Task(
        "currency",
        "geography",
        _currency,
        wording(
            """
            What currency is used in {country}?
            Which currency do people in {country} pay with?
            What is the official currency of {country}?
            Name the currency of {country}.""",
            """
            The currency of {country} is the {answer}.
            People in {country} use the {answer}.
            It is the {answer}.""",
        ),
        wording(
            """
            {country}使用什么货币？
            {country}的官方货币是什么？
            在{country}付款用哪种货币？""",
            """
            {country}使用{answer}。
            {country}的货币是{answer}。""",
        ),
    ),
    Task(
        "continent",
        "geography",
        _continent,
        wording(
            """
            On which continent is {country}?
            Which continent does {country} belong to?
            What continent is {country} in?
            Name the continent where you find {country}.""",
            """
            {country} is in {answer}.
            It is in {answer}.
            {country} belongs to {answer}.""",
        ),
        wording(
            """
            {country}位于哪个大洲？
            {country}在哪个洲？
            {country}属于哪个大洲？""",
            """
            {country}位于{answer}。
            {country}属于{answer}。
            它在{answer}。""",
        ),
    ),
    Task(
        "which_in_continent",
        "geography",
        _which_in,
        wording(
            """
            Which of these countries is in {continent}: {options}?
            {options}: which one lies in {continent}?
            Pick the country in {continent}: {options}.""",
            """
            {answer} is in {continent}.
            The answer is {answer}.
            {answer} is the one in {continent}.""",
        ),
        wording(
            """
            {options}中，哪个国家位于{continent}？
            下列国家里哪个在{continent}：{options}？
            从{options}中选出{continent}的国家。""",
            """
            {answer}位于{continent}。
            答案是{answer}。""",
        ),
        weight=1.5,
    ),
    Task(
        "is_capital",
        "geography",
        _is_capital,
        wording(
            """
            Is {city} the capital of {country}?
            True or not: {city} is the capital of {country}?
            Would it be right to call {city} the capital of {country}?""",
            """
            {answer}, {city} {verb} the capital of {country}.
            {answer}.""",
        ),
        wording(
            """
            {city}是{country}的首都吗？
            {country}的首都是不是{city}？""",
            """
            {answer}，{city}{verb}{country}的首都。
            {answer}。""",
        ),
    ),
    Task(
        "same_continent",
        "geography",
        _same_continent,
        wording(
            """
            Are {a} and {b} on the same continent?
            Do {a} and {b} lie on the same continent?
            Do {a} and {b} share a continent?""",
            """
            {answer}, {reason}.
            {answer}.""",
        ),
        wording(
            """
            {a}和{b}是在同一个大洲吗？
            {a}与{b}是不是同属一个大洲？""",
            """
            {answer}，{reason}。
            {answer}。""",
        ),
    ),
)
