"""A model as the judge of pairs of answers, asked twice with the sides exchanged.

Only a verdict that survives the exchange counts; the rest are ties (Zheng et al., "Judging
LLM-as-a-Judge with MT-Bench and Chatbot Arena", 2023, on position bias).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.evaluation.agreement import wilson_interval
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.storage import append_line, ensure_folder, read_whole_lines

Judge = Callable[[str], str]
"""A judge's prompt → what the judge says."""

PROMPT = (
    "Two assistants answered the same request. Which answer is better: more correct, more helpful, "
    "safer, and no longer than it needs to be? Do not prefer one for its position or length.\n\n"
    "[Request]\n{prompt}\n\n[Answer A]\n{a}\n\n[Answer B]\n{b}\n\n"
    "Reply with one of [[A]], [[B]] or [[tie]] and nothing else."
)
_VERDICT = re.compile(r"\[\[\s*(a|b|tie)\s*\]\]", re.IGNORECASE)
_BARE = re.compile(r"^\W*(a|b|tie)\b", re.IGNORECASE)
RETRIES, WAIT = 3, 2.0


def verdict(reply: str) -> str | None:
    """The verdict "A", "B" or "tie"; None where the reply says neither."""
    found = _VERDICT.findall(reply)
    if not found:
        bare = _BARE.match(reply)
        found = [bare[1]] if bare else []
    return {"a": "A", "b": "B", "tie": "tie"}.get(found[-1].lower()) if found else None


def judge_pairs(
    judge: Judge,
    prompts: Sequence[str],
    first: Sequence[str],
    second: Sequence[str],
    show_progress: bool | None = None,
) -> dict[str, Any]:
    """Compare two models' answers.

    Args:
        judge: Asked twice a pair.
        prompts: What was asked.
        first: Answers of the first model.
        second: Answers of the second.
        show_progress: See `progress`.

    Returns:
        ``wins``, ``losses``, ``ties`` of the first, ``win_rate`` (ties count half) with ``low`` and
        ``high`` (Wilson, 95 %), ``consistent`` (share of pairs with the same verdict both ways),
        ``unreadable`` (replies without a verdict), and ``outcomes``: "first", "second" or "tie".
    """
    outcomes, consistent, unreadable = [], 0, 0
    with progress(len(prompts), "Judging", show_progress) as bar:
        for prompt, one, two in zip(prompts, first, second, strict=True):
            plain = verdict(judge(PROMPT.format(prompt=prompt, a=one, b=two)))
            turned = verdict(judge(PROMPT.format(prompt=prompt, a=two, b=one)))
            unreadable += (plain is None) + (turned is None)
            here = {"A": "first", "B": "second", "tie": "tie"}.get(plain or "")
            there = {"A": "second", "B": "first", "tie": "tie"}.get(turned or "")
            consistent += here is not None and here == there
            outcomes.append(here if here is not None and here == there else "tie")
            bar.advance()
    n = len(outcomes)
    wins, losses, ties = (outcomes.count(name) for name in ("first", "second", "tie"))
    low, high = wilson_interval(wins + ties / 2, n)
    return {
        "wins": wins,
        "losses": losses,
        "ties": ties,
        "win_rate": (wins + ties / 2) / n if n else None,
        "low": low,
        "high": high,
        "consistent": consistent / n if n else None,
        "unreadable": unreadable,
        "outcomes": outcomes,
    }


def remembering(judge: Judge, path: str | os.PathLike[str]) -> Judge:
    """A judge that keeps its replies in a file, one JSON line each, and is not asked again.

    Args:
        judge: Who is asked where the file has no reply.
        path: ``{"asked": digest of the judge's prompt, "reply": text}`` a line; made with its
            folder. One judge a file.

    Raises:
        StateError: The file cannot be read; later, that it cannot be written.
    """
    ensure_folder(Path(path).parent)
    known = {str(line.get("asked")): str(line.get("reply")) for line in read_whole_lines(path)}

    def ask(prompt: str) -> str:
        asked = hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()
        if asked not in known:
            known[asked] = judge(prompt)
            append_line(path, json.dumps({"asked": asked, "reply": known[asked]}), durable=True)
        return known[asked]

    return ask


def local_judge(model: Any, tokenizer: Any, max_new_tokens: int = 8) -> Judge:
    """A judge that is a local chat model, decoding greedily."""
    from hf_glm_curriculum.evaluation.generation import generate_answers

    def ask(prompt: str) -> str:
        return generate_answers(
            model, tokenizer, [prompt], max_new_tokens=max_new_tokens, show_progress=False
        )[0]

    return ask


def endpoint_judge(
    url: str, model: str, key_variable: str = "OPENAI_API_KEY", timeout: float = 60.0
) -> Judge:
    """A judge behind an OpenAI-compatible endpoint.

    Args:
        url: Such as ``http://localhost:8000/v1``; ``/chat/completions`` is added.
        model: Its name there.
        key_variable: Environment variable with the key; without it none is sent. The key is never
            written or logged.
        timeout: Seconds for a reply. Errors that may pass (429, 5xx, no connection) are tried
            again, three times in all.

    Raises:
        ConfigError: The address is none.
    """
    if not re.match(r"https?://", url):
        raise ConfigError(f"judge_url: must begin with http:// or https://, got {url!r}")
    address = url.rstrip("/") + "/chat/completions"

    def ask(prompt: str) -> str:
        body = {
            "model": model,
            "temperature": 0,
            "max_tokens": 16,
            "messages": [{"role": "user", "content": prompt}],
        }
        headers = {"Content-Type": "application/json"}
        key = os.environ.get(key_variable)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = json.dumps(body).encode("utf-8")
        return _reply(urllib.request.Request(address, data, headers), timeout)

    return ask


def _reply(request: urllib.request.Request, timeout: float) -> str:
    """Send a request, patiently.

    Raises:
        StateError: The endpoint refuses, cannot be reached, or answers something else.
    """
    reason = ""
    for attempt in range(RETRIES):
        if attempt:
            time.sleep(WAIT * attempt)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                tree = json.loads(response.read())
            return str(tree["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            reason = f"it answers {error.code} {error.reason}"
            if error.code != 429 and error.code < 500:
                break
        except (OSError, ValueError) as error:
            reason = str(error)
        except (KeyError, IndexError, TypeError):
            reason = "its reply holds no choices[0].message.content"
            break
    raise StateError(f"judge at {request.full_url}: {reason}; check the address, model and key")
