"""Boilerplate: openings and closings that fill space without answering."""

from hf_glm_curriculum.text.words import sentences

_OPENINGS = (
    "as an ai",
    "as a language model",
    "as a large language model",
    "i'm just an ai",
    "i am an ai",
    "sure!",
    "sure,",
    "sure thing",
    "certainly!",
    "certainly,",
    "of course!",
    "of course,",
    "absolutely!",
    "great question",
    "good question",
    "that's a great question",
    "i'd be happy to",
    "i would be happy to",
    "happy to help",
    "i'm glad you asked",
    "thank you for your question",
    "thanks for asking",
    "here is a",
    "here is the",
    "here are some",
    "here's a",
    "below is",
    "let me help you",
    "in today's fast-paced world",
    "in today's world",
    "作为一个人工智能",
    "作为人工智能",
    "作为一个ai",
    "作为ai",
    "作为一个 ai",
    "作为一个语言模型",
    "作为语言模型",
    "作为大语言模型",
    "好的,",
    "好的!",
    "好的.",
    "当然!",
    "当然,",
    "当然可以",
    "没问题",
    "很高兴为您",
    "很高兴为你",
    "感谢您的提问",
    "谢谢你的提问",
    "这是一个很好的问题",
    "以下是",
    "下面是",
    "随着社会的发展",
    "随着科技的发展",
)
_CLOSINGS = (
    "i hope this helps",
    "hope this helps",
    "hope that helps",
    "let me know if you",
    "feel free to ask",
    "please let me know",
    "if you have any other questions",
    "if you have any more questions",
    "is there anything else",
    "don't hesitate to",
    "希望对您有帮助",
    "希望对你有帮助",
    "希望这对",
    "希望这些",
    "如果您有任何",
    "如果你有任何",
    "如有任何问题",
    "如果还有",
    "欢迎随时",
    "请随时",
)
_PUNCTUATION = str.maketrans("，！。：；’", ",!.:;'")


def _plain(text: str) -> str:
    return text.lower().translate(_PUNCTUATION).lstrip(" \t\n\"'“*#")


def template_opening(text: str) -> str | None:
    """Return the boilerplate phrase an answer opens with, or None.

    Matches English ("As an AI language model", "Sure!", "Great question") and Chinese
    (好的，以下是, 作为一个人工智能) openings, whatever their case and punctuation width.
    """
    opening = _plain(text)
    return next((phrase for phrase in _OPENINGS if opening.startswith(phrase)), None)


def template_closing(text: str) -> str | None:
    """Return the boilerplate phrase in the last sentence of an answer, or None."""
    found = sentences(text)
    closing = _plain(found[-1]) if found else ""
    return next((phrase for phrase in _CLOSINGS if phrase in closing), None)


def template_share(texts: list[str]) -> float:
    """Compute the share of answers with a boilerplate opening or closing, 0.0 for no answers."""
    hits = sum(bool(template_opening(text) or template_closing(text)) for text in texts)
    return hits / len(texts) if texts else 0.0
