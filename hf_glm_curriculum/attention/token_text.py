"""The text behind token ids, as it becomes known token by token, with offsets both ways."""

from __future__ import annotations

import codecs
import json
import re
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hf_glm_curriculum.attention.growing import GrowingArray

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText:
    """Text decoded from token ids one after the other.

    A character counts as known once the token that completes it is there: byte-level vocabularies
    split one Chinese character over up to three tokens. Adding tokens one at a time gives the
    same text and offsets as adding them at once.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Start with no tokens.

        Args:
            tokenizer: Any tokenizer of transformers.
        """
        self._pieces = _pieces_of(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ends = GrowingArray(np.int64)
        self._length = 0

    def append(self, ids: np.ndarray) -> str:
        """Add tokens (int [count]) and return the characters they complete."""
        parts: list[str] = []
        ends = np.empty(len(ids), np.int64)
        decode, pieces, length = self._decoder.decode, self._pieces, self._length
        for index, token in enumerate(ids.tolist()):
            part = decode(pieces(token))
            length += len(part)
            ends[index] = length
            parts.append(part)
        self._length = length
        self._ends.extend(ends)
        return "".join(parts)

    def token_of(self, character: int) -> int:
        """The token that a character begins in."""
        ends = self._ends.values
        if character == 0:
            return 0
        token = int(np.searchsorted(ends, character, "left"))
        return token + 1 if token < len(ends) - 1 and ends[token] == character else token

    def tokens_for(self, characters: int) -> int:
        """How many tokens it takes until so many characters are known."""
        return int(np.searchsorted(self._ends.values, characters, "left")) + 1

    def copy(self) -> TokenText:
        """An independent copy."""
        other = object.__new__(TokenText)
        other._pieces = self._pieces
        other._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        other._decoder.setstate(self._decoder.getstate())
        other._ends = self._ends.copy()
        other._length = self._length
        return other


class _Pieces:
    """Token id → its bytes, looked up once for every id that occurs."""

    def __init__(self, tokenizer: Any) -> None:
        self._known: dict[int, bytes] = {}
        self._style = _style(tokenizer)
        self._to_tokens = tokenizer.convert_ids_to_tokens
        self._decode = tokenizer.decode
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._added = {int(key): str(token) for key, token in added.items()}

    def __call__(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._bytes(token)
        return found

    def _bytes(self, token: int) -> bytes:
        if token < 0:
            return b""
        if token in self._added:
            return self._added[token].encode()
        try:
            piece = self._to_tokens(token)
        except (IndexError, KeyError, OverflowError, ValueError):
            return b""  # an id beyond the vocabulary has no text
        if piece is None:
            return b""
        if isinstance(piece, bytes):
            return piece
        if self._style == "other":
            return self._decode([token]).encode()
        return _STYLES[self._style](piece)


_PIECES: WeakKeyDictionary[Any, _Pieces] = WeakKeyDictionary()


def _pieces_of(tokenizer: Any) -> _Pieces:
    """The table of a tokenizer, shared by every text that is decoded with it."""
    found = _PIECES.get(tokenizer)
    if found is None:
        found = _PIECES[tokenizer] = _Pieces(tokenizer)
    return found


def _style(tokenizer: Any) -> str:
    """How the vocabulary writes bytes and blanks: byte_level, sentencepiece, wordpiece or other."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    if decoder is not None:
        names = _type_names(json.loads(decoder.__getstate__()))
        for name, style in _DECODERS.items():
            if name in names:
                return style
    if hasattr(tokenizer, "byte_decoder"):
        return "byte_level"
    return "sentencepiece" if hasattr(tokenizer, "sp_model") else "other"


_DECODERS = {
    "ByteLevel": "byte_level",
    "Metaspace": "sentencepiece",
    "ByteFallback": "sentencepiece",
    "WordPiece": "wordpiece",
}


def _type_names(node: Any) -> set[str]:
    """Every ``type`` in a decoder's description."""
    if isinstance(node, list):
        return set().union(*map(_type_names, node))
    if not isinstance(node, dict):
        return set()
    own = {node["type"]} if isinstance(node.get("type"), str) else set()
    return own.union(*map(_type_names, node.values()))


@cache
def _byte_alphabet() -> dict[str, int]:
    """Character → byte in byte-level vocabularies (Radford et al., 2019: GPT-2's encoder).

    Printable bytes stand for themselves; the others are counted up from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + count): byte for count, byte in enumerate(hidden)}


def _byte_level(piece: str) -> bytes:
    alphabet = _byte_alphabet()
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()


def _wordpiece(piece: str) -> bytes:
    return (piece[2:] if piece.startswith("##") else f" {piece}").encode()


_STYLES = {
    "byte_level": _byte_level,
    "sentencepiece": _sentencepiece,
    "wordpiece": _wordpiece,
}
