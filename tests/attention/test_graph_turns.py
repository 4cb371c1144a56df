"""Turns by chat template, by plain names and by given numbers."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.turns import role_markers
from hf_glm_curriculum.errors import DataError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim"
    " + '<|eot_id|>' }}{% endfor %}"
)
GLM4 = (
    "{{ '[gMASK]<sop>' }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ '<|system|>\n' + m['content'] }}"
    "{% elif m['role'] == 'user' %}{{ '<|user|>\n' + m['content'] }}"
    "{% else %}{{ '<|assistant|>\n<think></think>\n' + m['content'] }}{% endif %}{% endfor %}"
)
GLM_FLAT = (
    "{{ '[gMASK]<sop>' }}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}{{ '<|assistant|></think>' + m['content'] }}"
    "{% else %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] + '<end_of_turn>\n' }}{% endfor %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ ' ' + m['content'] + '</s>' }}{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
)
ALPACA = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ '### Response:\n' + m['content'] + '\n\n' }}{% elif m['role'] == 'user' %}"
    "{{ '### Instruction:\n' + m['content'] + '\n\n' }}{% else %}{{ m['content'] + '\n\n' }}"
    "{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "glm4": GLM4, "glm": GLM_FLAT, "gemma": GEMMA,
             "mistral": MISTRAL, "alpaca": ALPACA}  # fmt: skip
MESSAGES = [
    {"role": "user", "content": "我的订单在哪里？ Where is order 7?"},
    {"role": "assistant", "content": "It left on Monday.\nUser: is a word here."},
    {"role": "user", "content": "And <b>order</b> 8?"},
    {"role": "assistant", "content": "It is with us."},
    {"role": "user", "content": "Thanks, that is all."},
]


def config(**changes):
    return PositionGraphConfig(block_size=16, window=16, structure=(), **changes)


@pytest.mark.parametrize("name", TEMPLATES)
def test_turns_are_found_by_the_tokenizers_own_template(name, tiny_tokenizer):
    tiny_tokenizer.chat_template = TEMPLATES[name]
    messages = MESSAGES
    ids = tiny_tokenizer.apply_chat_template(messages, tokenize=True)["input_ids"]
    text = tiny_tokenizer.apply_chat_template(messages, tokenize=False)
    graph = PositionGraph.from_messages(messages, tiny_tokenizer, config())
    assert graph.n == len(ids)
    contents = [text.encode().index(m["content"].encode()) for m in messages]
    found = graph.edge_table
    turns = sorted({int(a) for a, b, k, _ in found if k == 6 and b == a - 1})
    assert len(turns) == len(messages) - 1, (name, turns)
    for turn, content in zip(turns, contents[1:], strict=True):
        between = bytes(text.encode()[turn:content]).decode()
        assert 0 < len(between) < 60, between
        assert "Where" not in between and "Monday" not in between


def test_the_edges_of_a_dialogue(tiny_tokenizer):
    tiny_tokenizer.chat_template = CHATML
    text = tiny_tokenizer.apply_chat_template(MESSAGES, tokenize=False).encode()
    graph = PositionGraph.from_messages(MESSAGES, tiny_tokenizer, config())
    starts = [i for i in range(len(text)) if text.startswith(b"<|im_start|>", i)]
    table = {(a, b, k) for a, b, k, known in graph.edge_table.tolist() if known > a}
    for before, turn in pairwise(starts):
        assert (turn, before, 5) in table, "turn_previous"
        assert (turn, turn - 1, 6) in table, "turn_next"
        assert (turn, starts[0], 7) in table or before == starts[0], "session_start"


def test_blocks_inside_a_turn_know_the_turn_and_the_one_before(tiny_tokenizer):
    tiny_tokenizer.chat_template = CHATML
    long = [{"role": "user", "content": "question " * 20},
            {"role": "assistant", "content": "answer " * 30},
            {"role": "user", "content": "again " * 40}]  # fmt: skip
    graph = PositionGraph.from_messages(long, tiny_tokenizer, config())
    text = tiny_tokenizer.apply_chat_template(long, tokenize=False)
    starts = [i // 16 for i in range(len(text)) if text.startswith("<|im_start|>", i)]
    ties = dict(graph.block_ties(graph.n_blocks - 1))
    assert ties[starts[2]] == "turn_previous" and ties[starts[1]] == "turn_previous"
    assert ties[0] in ("session_start", "turn_previous")


def test_a_second_system_message_begins_a_new_session(tiny_tokenizer):
    tiny_tokenizer.chat_template = CHATML
    one = [{"role": "system", "content": "Be brief."}, *MESSAGES[:2]]
    graph = PositionGraph.from_messages([*one, *one], tiny_tokenizer, config())
    text = tiny_tokenizer.apply_chat_template([*one, *one], tokenize=False).encode()
    second = text.rindex(b"<|im_start|>system")
    table = graph.edge_table
    assert [second - 1, 0] in table[table[:, 2] == 8, :2].tolist(), "session_end"
    later = table[(table[:, 0] > second + 32) & (table[:, 2] == 7)]
    assert set(later[:, 1].tolist()) == {second}, "session_start is the new one's"


@pytest.mark.parametrize(
    "text",
    ["User: Where is it?\nAssistant: On its way.\nUser: Thank you.\n",
     "用户：在哪里？\n助手：在路上。\n用户：谢谢你。\n",
     "customer: I want a refund\nagent: why?\naction: pulled up account\n"],
)  # fmt: skip
def test_plain_names_without_a_template(text, tiny_tokenizer):
    tiny_tokenizer.chat_template = None
    graph = PositionGraph.from_text(text, tiny_tokenizer, config())
    lines = [0]
    for line in text.encode().splitlines(keepends=True)[:-1]:
        lines.append(lines[-1] + len(line))
    table = {tuple(row) for row in graph.edge_table[:, :3].tolist()}
    assert (lines[1], lines[0], 5) in table and (lines[2], lines[1], 5) in table


def test_given_turns_equal_found_ones():
    turns = np.repeat([0, 1, 2, 3], [20, 30, 25, 37])  # 112 positions: whole blocks
    graph = PositionGraph.from_turns(turns, config())
    table = graph.edge_table
    pairs = table[(table[:, 2] == 5) & (table[:, 0] + 1 == table[:, 3]), :2].tolist()
    for pair in ([20, 0], [50, 20], [75, 50]):
        assert pair in pairs
    grown = PositionGraph.from_turns(turns[:1], config())
    for turn in turns[1:]:
        grown.append([turn])
    np.testing.assert_array_equal(grown.edge_table, table)


def test_a_turn_that_begins_with_a_block_is_known_after_it():
    turns = np.repeat(np.arange(6), 32)
    whole, grown = PositionGraph.from_turns(turns, config()), PositionGraph.from_turns([], config())
    for turn in turns:
        grown.append([turn])
    np.testing.assert_array_equal(grown.edge_table, whole.edge_table)
    np.testing.assert_array_equal(grown.nearest_blocks(0, 13, 5), whole.nearest_blocks(0, 13, 5))


def test_a_file_of_given_turns_comes_back(tmp_path):
    graph = PositionGraph.from_turns([0] * 20 + [1] * 40, config())
    graph.save(tmp_path / "turns.npz")
    other = PositionGraph.load(tmp_path / "turns.npz")
    np.testing.assert_array_equal(other.edge_table, graph.edge_table)


def test_turns_can_be_left_out(tiny_tokenizer):
    graph = PositionGraph.from_messages(MESSAGES, tiny_tokenizer, config(turns=False))
    assert set(graph.edge_kinds) == {"start"}


def test_tags_in_a_prompt_are_no_turns_of_a_plain_template(tiny_tokenizer):
    messages = [{"role": "user", "content": "<context>words</context> <function>f</function>"},
                {"role": "assistant", "content": "ok, that is enough of it"}]  # fmt: skip
    graph = PositionGraph.from_messages(messages, tiny_tokenizer, config())
    table = graph.edge_table
    assert len(table[table[:, 2] == 6]) >= 1
    assert len({int(a) for a, b, k, _ in table if k == 6 and b == a - 1}) == 1


def test_a_template_that_shows_no_markers_gives_none(tiny_tokenizer):
    tiny_tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert role_markers(tiny_tokenizer) is None
    tiny_tokenizer.chat_template = None
    assert role_markers(tiny_tokenizer) is None


def test_refused_messages_are_named(tiny_tokenizer):
    tiny_tokenizer.chat_template = GEMMA
    with pytest.raises(DataError, match="the chat template refuses them"):
        PositionGraph.from_messages([{"role": "system", "content": "x"}], tiny_tokenizer)


def test_real_dialogues_turn_by_turn(shared_data, tiny_tokenizer):
    tiny_tokenizer.chat_template = CHATML
    roles = {"usr": "user", "sys": "assistant"}
    lines = (shared_data / "dialog_crosswoz_zh" / "val_first.jsonl").read_text("utf-8")
    for line in lines.splitlines()[:5]:
        messages = [{"role": roles[m["role"]], "content": m["content"]}
                    for m in json.loads(line)["messages"]]  # fmt: skip
        graph = PositionGraph.from_messages(messages, tiny_tokenizer, config())
        table = graph.edge_table
        turns = {int(a) for a, b, k, _ in table if k == 6 and b == a - 1}
        assert len(turns) == len(messages) - 1
