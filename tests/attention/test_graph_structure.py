"""What the detectors find: headings, clauses, definitions, references, in English and Chinese."""

from __future__ import annotations

import pytest

from hf_glm_curriculum.attention import structure
from hf_glm_curriculum.attention.clause_numbers import chinese_number, roman_number
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.structure import TokenDetector, register_detector
from hf_glm_curriculum.errors import ConfigError


def graph_of(text, tokenizer, *names):
    config = PositionGraphConfig(block_size=16, structure=names, turns=False)
    return PositionGraph.from_text(text, tokenizer, config)


def found(text, tokenizer, kind, *names):
    """(line of the later end, line of the earlier end) of the edges inside blocks of a kind."""
    graph = graph_of(text, tokenizer, *names)
    pairs = set()
    for (later, earlier), name in zip(graph.edges.tolist(), graph.edge_kinds, strict=True):
        if name == kind:
            pairs.add((line_at(text, later), line_at(text, earlier)))
    return pairs


def line_at(text, byte):
    before = text.encode()[:byte].decode(errors="ignore")
    return text.split("\n")[before.count("\n")]


def targets(text, tokenizer, *names):
    """What the mentions after the last "@" refer to."""
    tail = text.rpartition("@")[0].count("\n")
    lines = text.split("\n")
    pairs = found(text, tokenizer, "reference", *names)
    return {earlier for later, earlier in pairs if lines.index(later) >= tail}


def test_headings_nest(tiny_tokenizer):
    text = "# A\none\n## B\ntwo\n### C\nthree\n## D\nfour, and some more words to fill a block\n"
    pairs = found(text, tiny_tokenizer, "heading", "markdown")
    assert ("## B", "# A") in pairs
    assert ("### C", "## B") in pairs
    assert ("## D", "# A") in pairs
    last = "four, and some more words to fill a block"
    assert {earlier for later, earlier in pairs if later == last} == {"# A", "## D"}


def test_underlined_headings_begin_with_their_text(tiny_tokenizer):
    text = "Title\n=====\nsome words here\nPart\n-----\nand more words that fill up a whole block\n"
    pairs = found(text, tiny_tokenizer, "heading", "markdown")
    assert ("Part", "Title") in pairs
    assert ("and more words that fill up a whole block", "Part") in pairs


@pytest.mark.parametrize(
    "line",
    [
        "#no blank after the hash, so this is no heading at all in any renderer",
        "    # four blanks make this code and no heading, whatever it says there",
        "####### seven hashes are too many for a heading, says the specification",
    ],
)
def test_what_is_no_heading(line, tiny_tokenizer):
    assert found(f"{line}\n{line}\n", tiny_tokenizer, "heading", "markdown") == set()


def test_a_hash_in_fenced_code_is_no_heading(tiny_tokenizer):
    text = "# A\n```\n# comment in the code\n```\n## B after the code, long enough for a block\n"
    pairs = found(text, tiny_tokenizer, "heading", "markdown")
    assert {earlier for _, earlier in pairs} == {"# A", text.split("\n")[4]}


def test_front_matter_is_no_heading(tiny_tokenizer):
    text = "---\ntitle: of the page, which is long enough\nversions: all\n---\nwords of the text\n"
    assert found(text, tiny_tokenizer, "heading", "markdown") == set()


ENGLISH = """ARTICLE I. DEFINITIONS
Section 1.01 Terms. Words.
4. TERMINATION
4.1 Term. Long.
4.2 Fees. Paid.
(a) first item
(b) second item
5. LIABILITY
5.1 Cap.
Exhibit B: Prices
Exhibit C: Places
@
"""


@pytest.mark.parametrize(
    ("mention", "target"),
    [
        ("as Section 4.2 provides", "4.2 Fees. Paid."),
        ("under section 4.2 we", "4.2 Fees. Paid."),
        ("see § 5.1 there", "5.1 Cap."),
        ("subject to Article I of this", "ARTICLE I. DEFINITIONS"),
        ("subject to Article 1 of this", "ARTICLE I. DEFINITIONS"),
        ("the Section 4.2(b) items", "(b) second item"),
        ("the Section 4.2(x) items", "4.2 Fees. Paid."),
        ("in Section 4.9 as", "4. TERMINATION"),
        ("listed in Exhibit B hereto", "Exhibit B: Prices"),
        ("by Section 1.01 only", "Section 1.01 Terms. Words."),
    ],
)
def test_english_references(mention, target, tiny_tokenizer):
    text = ENGLISH.replace("@", f"{mention} @") + "and the text goes on.\n"
    assert targets(text, tiny_tokenizer, "legal") == {target}


def test_lists_of_references(tiny_tokenizer):
    text = ENGLISH.replace("@", "Sections 4.1, 4.2 and 5.1 apply @") + "and the text goes on.\n"
    expected = {"4.1 Term. Long.", "4.2 Fees. Paid.", "5.1 Cap."}
    assert targets(text, tiny_tokenizer, "legal") == expected


@pytest.mark.parametrize("mention", ["Section 99 is not here", "the cross-section 4 view", "4.2"])
def test_what_refers_to_nothing(mention, tiny_tokenizer):
    text = ENGLISH.replace("@", f"{mention} @") + "and the text goes on.\n"
    assert targets(text, tiny_tokenizer, "legal") == set() or mention.startswith("the cross")


def test_a_mention_at_the_beginning_of_a_line_opens_no_clause(tiny_tokenizer):
    text = "Section 4. Term\nwords\nSection 4 provides that it ends, and so on it goes.\n"
    pairs = found(text, tiny_tokenizer, "clause", "legal")
    assert {earlier for _, earlier in pairs} == {"Section 4. Term"}


def test_clauses_nest_and_end(tiny_tokenizer):
    text = "4. Term\n4.1 Start now, it says here.\n4.2 End\n5. Money\n5.1 Due at once, it says.\n"
    pairs = found(text, tiny_tokenizer, "clause", "legal")
    assert ("4.1 Start now, it says here.", "4. Term") in pairs
    assert ("4.2 End", "4. Term") in pairs
    assert ("5.1 Due at once, it says.", "5. Money") in pairs
    assert ("5.1 Due at once, it says.", "4. Term") not in pairs


def test_numbered_markdown_headings_bear_the_number_of_those_above(tiny_tokenizer):
    text = "## D. Content\n### 4. License\nwords\n## E. Rest\nas Section D.4 says @\nthe end.\n"
    assert targets(text, tiny_tokenizer, "markdown", "legal") == {"### 4. License"}


def test_nested_list_items_are_clauses_of_their_list(tiny_tokenizer):
    text = "1. Use\n    1. Access\n    2. Support\n2. Pay\n    1. Fees\n"
    text += "see Section 1.2 and @\nso on.\n"
    assert targets(text, tiny_tokenizer, "legal") == {"    2. Support"}


def test_a_list_inside_a_clause_does_not_end_it(tiny_tokenizer):
    text = "4. Term\n4.2 These are:\n1. one thing\n2. another thing\nlast words of the clause.\n"
    pairs = found(text, tiny_tokenizer, "clause", "legal")
    assert ("2. another thing", "4.2 These are:") in pairs


CHINESE = """第一章　总则
第一条　为了规范。
第二条　本法所称，
（一）甲；
（二）乙。
第二章　设立
第十条之一　增加的一条。
**第一百零三条**　公司
@
"""


@pytest.mark.parametrize(
    ("mention", "target"),
    [
        ("依照第二条的规定", "第二条　本法所称，"),
        ("本法第一条所称", "第一条　为了规范。"),
        ("适用第一章规定", "第一章　总则"),
        ("依照第十条之一处罚", "第十条之一　增加的一条。"),
        ("依照第2条处罚", "第二条　本法所称，"),
    ],
)
def test_chinese_references(mention, target, tiny_tokenizer):
    text = CHINESE.replace("@", f"{mention}@") + "后面的文字。\n"
    assert targets(text, tiny_tokenizer, "legal") == {target}


def test_the_clause_before(tiny_tokenizer):
    text = "第七条　甲的内容。\n第八条　犯前条罪的，@\n依照规定处罚，后面的文字。\n"
    assert targets(text, tiny_tokenizer, "legal") == {"第七条　甲的内容。"}


def test_clauses_of_another_law_are_not_meant(tiny_tokenizer):
    text = CHINESE.replace("@", "依照《民法典》第二条@") + "后面的文字。\n"
    assert targets(text, tiny_tokenizer, "legal") == set()


def test_chinese_clauses_nest(tiny_tokenizer):
    pairs = found(CHINESE, tiny_tokenizer, "clause", "legal")
    assert ("第二条　本法所称，", "第一章　总则") in pairs
    assert ("（二）乙。", "第二条　本法所称，") in pairs
    assert ("第十条之一　增加的一条。", "第二章　设立") in pairs


def test_a_clause_links_back_to_earlier_mentions_of_it(tiny_tokenizer):
    text = "1. One\nsubject to Section 3 only.\n2. Two\nwords and words\n3. Three\nwords.\n"
    pairs = found(text, tiny_tokenizer, "reference", "legal")
    assert pairs == {("3. Three", "subject to Section 3 only.")}


CODE = '''import os

class Reader(Base):
    """Reads."""

    def read(self, count):
        return os.read(count + 1)

def helper(value):
    return value

print(helper(3), "and more text that fills a block")
'''


def test_definitions_nest_and_end_by_indent(tiny_tokenizer):
    pairs = found(CODE, tiny_tokenizer, "definition", "code")
    assert ("    def read(self, count):", "class Reader(Base):") in pairs
    assert ("def helper(value):", "class Reader(Base):") not in pairs
    inside = {e for later, e in pairs if later.startswith("print")}
    assert inside == set(), "the last line stands outside every definition"


def test_calls_refer_to_definitions(tiny_tokenizer):
    pairs = found(CODE, tiny_tokenizer, "reference", "code")
    assert any(e == "def helper(value):" and later.startswith("print") for later, e in pairs)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("export async function load(path) {", "load"),
        ("pub(crate) fn parse<T>(text: &str) -> T {", "parse"),
        ("func (s *Server) Start(ctx context.Context) error {", "Start"),
        ("type Config struct {", "Config"),
        ("impl Display for Matrix {", "Matrix"),
        ("public static void main(String[] args) {", "main"),
        ("class Node extends Base {", "Node"),
        ("async def run(self):", "run"),
        ("interface Shape {", "Shape"),
    ],
)
def test_definitions_of_many_languages(line, name, tiny_tokenizer):
    text = f"{line}\n  body of it\n{'}'}\nthen {name}(1) is called, and so on.\n"
    pairs = found(text, tiny_tokenizer, "reference", "code")
    assert {earlier for _, earlier in pairs} == {line}


@pytest.mark.parametrize(
    "line",
    ["class action waivers are void", "if (ready) {", "def is an abbreviation", "return f(x) {"],
)
def test_what_is_no_definition(line, tiny_tokenizer):
    assert found(f"{line}\n{line}\n", tiny_tokenizer, "definition", "code") == set()


def test_token_detectors_open_sections(tiny_tokenizer):
    separator = tiny_tokenizer.convert_tokens_to_ids("<eos>")
    register_detector("separator", lambda: (TokenDetector({separator: 1}),))
    try:
        text = "words<eos>more words, so many that a block is full<eos>the rest of it, also long"
        pairs = graph_of(text, tiny_tokenizer, "separator")
        earlier = {e for (_, e), k in zip(pairs.edges.tolist(), pairs.edge_kinds, strict=True)
                   if k == "heading"}  # fmt: skip
        ids = pairs.token_ids
        assert earlier and all(ids[position] == separator for position in earlier)
    finally:
        structure._REGISTRY.pop("separator")


def test_an_unknown_detector_is_named(tiny_tokenizer):
    with pytest.raises(ConfigError, match="no detector 'markdwn'; did you mean 'markdown'"):
        graph_of("text", tiny_tokenizer, "markdwn")


@pytest.mark.parametrize(
    ("text", "value"),
    [("十", 10), ("十二", 12), ("二十", 20), ("一百零三", 103), ("一千二百六十", 1260),
     ("二〇", 20), ("35", 35), ("两百", 200)],
)  # fmt: skip
def test_chinese_numbers(text, value):
    assert chinese_number(text) == value


@pytest.mark.parametrize(("text", "value"), [("IV", 4), ("XII", 12), ("XL", 40), ("Q", None)])
def test_roman_numbers(text, value):
    assert roman_number(text) == value
