"""IFEval's verifiable instructions as answer checks.

Source: Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models"; instruction
ids and keyword arguments as in its `input_data.jsonl`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_glm_curriculum.errors import DataError

Arguments = Mapping[str, Any]
_LANGUAGES = {"en", "zh"}
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _rule(name: str, **parameters: Any) -> dict[str, Any]:
    return {"kind": "format", "constraints": [{"rule": name, **parameters}]}


def _count(name: str, count: int, relation: str | None = "exactly", **more: Any) -> dict[str, Any]:
    return _rule(name, count=count, relation=relation or "at least", **more)


def _paragraph_opens(k: Arguments) -> dict[str, Any]:
    index, word = k["nth_paragraph"], k["first_word"]
    counted = {"rule": "paragraphs", "count": k["num_paragraphs"]}
    opens = {"rule": "paragraph_opens", "index": index, "value": word}
    return {"kind": "format", "constraints": [counted, opens]}


def _phrases(relation: str, count: int, phrases: Sequence[str]) -> dict[str, Any]:
    rules = [
        {"rule": "phrase", "value": phrase, "count": count, "relation": relation}
        for phrase in phrases
    ]
    return {"kind": "format", "constraints": rules}


def _language(k: Arguments) -> dict[str, Any]:
    # Any language but English and Chinese is "other" to the script detector.
    return _rule("language", value=k["language"] if k["language"] in _LANGUAGES else "other")


INSTRUCTIONS: dict[str, Callable[[Arguments], dict[str, Any]]] = {
    "keywords:existence": lambda k: _phrases("at least", 1, k["keywords"]),
    "keywords:forbidden_words": lambda k: _phrases("at most", 0, k["forbidden_words"]),
    "keywords:frequency": lambda k: _count(
        "phrase", k["frequency"], k["relation"], value=k["keyword"]
    ),
    "keywords:letter_frequency": lambda k: _count(
        "letter", k["let_frequency"], k["let_relation"], value=k["letter"]
    ),
    "language:response_language": _language,
    "length_constraints:number_sentences": lambda k: _count(
        "sentences", k["num_sentences"], k["relation"]
    ),
    "length_constraints:number_paragraphs": lambda k: _count(
        "parts", k["num_paragraphs"], divider="***"
    ),
    "length_constraints:number_words": lambda k: _count("words", k["num_words"], k["relation"]),
    "length_constraints:nth_paragraph_first_word": _paragraph_opens,
    "detectable_content:number_placeholders": lambda k: _count(
        "placeholders", k["num_placeholders"], "at least"
    ),
    "detectable_content:postscript": lambda k: _phrases("at least", 1, [k["postscript_marker"]]),
    "detectable_format:number_bullet_lists": lambda k: _count("bullets", k["num_bullets"]),
    "detectable_format:constrained_response": lambda k: {"kind": "exact", "any_of": list(_CHOICES)},
    "detectable_format:number_highlighted_sections": lambda k: _count(
        "highlights", k["num_highlights"], "at least"
    ),
    "detectable_format:multiple_sections": lambda k: _count(
        "sections", k["num_sections"], "at least", value=k["section_spliter"]
    ),
    "detectable_format:json_format": lambda k: _rule("json"),
    "detectable_format:title": lambda k: _rule("title"),
    "combination:two_responses": lambda k: _count("parts", 2, divider="******"),
    "combination:repeat_prompt": lambda k: _rule("starts_with", value=k["prompt_to_repeat"]),
    "startend:end_checker": lambda k: _rule("ends_with", value=k["end_phrase"]),
    "startend:quotation": lambda k: _rule("quoted"),
    "change_case:capital_word_frequency": lambda k: _count(
        "capital_words", k["capital_frequency"], k["capital_relation"]
    ),
    "change_case:english_capital": lambda k: _rule("uppercase"),
    "change_case:english_lowercase": lambda k: _rule("lowercase"),
    "punctuation:no_comma": lambda k: _rule("without", value=","),
}


def ifeval_checks(
    instruction_ids: Sequence[str], arguments: Sequence[Arguments]
) -> list[dict[str, Any]]:
    """Translate one IFEval row into answer checks, one for each instruction.

    Args:
        instruction_ids: the row's `instruction_id_list`.
        arguments: the row's `kwargs`, in the same order.

    Returns:
        Checks for `text.checks.check_answer`; all of them must hold for a strict pass. Languages
        other than English and Chinese are only checked to be neither.

    Raises:
        DataError: if an instruction id is unknown or an argument is missing.
    """
    checks = []
    for name, given in zip(instruction_ids, arguments, strict=True):
        if name not in INSTRUCTIONS:
            known = ", ".join(INSTRUCTIONS)
            raise DataError(f"instruction_id_list: unknown id {name!r}; known ids are {known}")
        try:
            checks.append(INSTRUCTIONS[name](given))
        except KeyError as missing:
            raise DataError(f"{name}: kwargs lack {missing}, got {dict(given)}") from None
    return checks
