"""Makes the word and verb tables that `InstructionEntropyEstimator` is bundled with.

    pip install wordfreq
    apt-get download wordnet-base && dpkg -x wordnet-base_*.deb wordnet
    python scripts/build_background_tables.py wordnet/usr/share/wordnet/index.verb

Word frequencies: wordfreq (Robyn Speer; data under CC BY-SA 4.0). English words as they are;
Chinese words taken apart into characters, pairs and triples of characters. Verb senses: WordNet 3.0
(Princeton University), the number of senses of each one-word verb. Licences lie beside the tables.
"""

from __future__ import annotations

import argparse
import gzip
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

TABLES = Path(__file__).parents[1] / "hf_glm_curriculum" / "curriculum" / "tables"
ENGLISH_WORDS = 60_000
CHINESE = {1: 7_000, 2: 45_000, 3: 15_000}
"""How many n-grams of Chinese characters are kept, by n."""


def main() -> None:
    """Write the three tables."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("index_verb", type=Path, help="WordNet's index.verb")
    args = flags.parse_args()
    import wordfreq

    english = wordfreq.get_frequency_dict("en", wordlist="large")
    write("words_en", most(((w, p) for w, p in english.items() if w.isalpha()), ENGLISH_WORDS))
    grams = chinese_ngrams(wordfreq.get_frequency_dict("zh", wordlist="large"))
    rows = [row for n, count in CHINESE.items() for row in most(grams[n].items(), count)]
    write("ngrams_zh", rows)
    write("verbs_en", sorted(verb_senses(args.index_verb.read_text("utf-8")).items()))


def most(frequencies: Iterable[tuple[str, float]], count: int) -> list[tuple[str, int]]:
    """The most frequent entries with their surprisal −log2 p in hundredths of a bit."""
    ordered = sorted(frequencies, key=lambda entry: (-entry[1], entry[0]))[:count]
    return [(text, round(-100 * math.log2(p))) for text, p in ordered]


def chinese_ngrams(words: dict[str, float]) -> dict[int, dict[str, float]]:
    """Probability of each run of 1, 2 and 3 characters, by the words it occurs in."""
    found: dict[int, dict[str, float]] = {n: defaultdict(float) for n in CHINESE}
    han = [(w, p) for w, p in words.items() if all("\u4e00" <= c <= "\u9fff" for c in w)]
    total = sum(p * len(word) for word, p in han)
    for word, p in han:
        for n, table in found.items():
            for start in range(len(word) - n + 1):
                table[word[start : start + n]] += p / total
    return found


def verb_senses(index: str) -> dict[str, int]:
    """Lemma → number of senses, of one-word verbs."""
    found = {}
    for line in index.splitlines():
        if line.startswith("  "):
            continue  # the licence
        lemma, _, count, *_ = line.split()
        if lemma.isalpha():
            found[lemma] = int(count)
    return found


def write(name: str, rows: Iterable[tuple[str, int]]) -> None:
    """One entry a line, text and number apart by a tab, gzipped so that it is always the same."""
    text = "".join(f"{text}\t{number}\n" for text, number in rows)
    TABLES.mkdir(parents=True, exist_ok=True)
    path = TABLES / f"{name}.tsv.gz"
    path.write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))
    print(f"{path.name}: {text.count(chr(10)):,} entries, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
