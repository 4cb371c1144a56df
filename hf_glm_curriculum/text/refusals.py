"""Refusals in English and Chinese: answers that decline to do what was asked."""

from hf_glm_curriculum.text.words import sentences

_APOLOGIES = (
    "i'm sorry",
    "i am sorry",
    "sorry",
    "i apologize",
    "i apologise",
    "unfortunately",
    "抱歉",
    "很抱歉",
    "非常抱歉",
    "对不起",
    "不好意思",
)
_DECLINES = (
    "i can't",
    "i cannot",
    "i can not",
    "i won't",
    "i will not",
    "i'm unable to",
    "i am unable to",
    "i'm not able to",
    "i am not able to",
    "i must decline",
    "i have to decline",
    "i'd rather not",
    "i'm not going to",
    "i am not going to",
    "i do not feel comfortable",
    "i don't feel comfortable",
    "i'm not comfortable",
    "i refuse to",
    "can't help with",
    "cannot help with",
    "can't assist",
    "cannot assist",
    "can't provide",
    "cannot provide",
    "not something i can help",
    "isn't something i can",
    "not able to help with",
    "won't be able to help",
    "i shouldn't help",
    "我不能",
    "我无法",
    "我没办法",
    "不能帮",
    "无法帮",
    "不会帮",
    "不能提供",
    "无法提供",
    "不便提供",
    "不能协助",
    "无法协助",
    "没法帮",
    "我拒绝",
    "恕我不能",
    "不能满足您",
    "不能满足你",
    "无法满足您",
    "无法满足你",
    "无法满足这",
    "不能为您",
    "无法为您",
    "不能为你",
    "无法为你",
    "不能告诉",
    "不方便提供",
    "帮不了",
    "无法回答",
    "不能回答",
)
_REASONS = (
    "illegal",
    "against the law",
    "harmful",
    "unethical",
    "against my guidelines",
    "违法",
    "违反法律",
    "不道德",
    "有害",
    "伤害他人",
)
# "I can't say for sure, but …" answers the question.
_HEDGES = (
    "can't say for sure",
    "cannot say for sure",
    "can't wait",
    "can't stress",
    "can't help but",
    "cannot emphasize",
    "can't emphasize",
    "cannot stress",
    "can't recommend",
    "can't go wrong",
    "不能保证",
    "无法确定",
)


def is_refusal(text: str, *, sentences_read: int = 2) -> bool:
    """Tell whether an answer declines the request in its first sentences.

    A decline phrase near the start is a refusal ("I can't help with that", 我不能帮你), with or
    without an apology; an apology together with a reason such as "illegal" is one too. An apology
    alone is not, nor is a hedge ("I can't say for sure").

    Args:
        text: the answer, English or Chinese.
        sentences_read: how many opening sentences count.
    """
    opening = " ".join(sentences(text)[:sentences_read]).lower().replace("’", "'")
    for hedge in _HEDGES:
        opening = opening.replace(hedge, " ")
    if any(phrase in opening for phrase in _DECLINES):
        return True
    is_sorry = opening.startswith(_APOLOGIES)
    return is_sorry and any(reason in opening for reason in _REASONS)


def refusal_rate(texts: list[str]) -> float:
    """Compute the share of answers that are refusals, 0.0 for an empty list."""
    return sum(map(is_refusal, texts)) / len(texts) if texts else 0.0
