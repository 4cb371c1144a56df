"""Settings: YAML, flags and defaults agree, and what is wrong is named."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from hf_glm_curriculum.config import (
    add_config_flags,
    config_from_args,
    dump_config,
    load_config,
    to_dict,
)
from hf_glm_curriculum.config_types import field_help
from hf_glm_curriculum.errors import ConfigError


@dataclass
class Inner:
    """The settings of one part."""

    weighting: Literal["progress", "article", "none"] = "progress"
    """How samples are weighted,
    in two lines and 100%."""
    floor: float = 0.1
    """The smallest weight."""
    name: str = "inner"
    """A name that the outer class has too."""
    bounds: tuple[float, float] = (0.1, 2.0)
    """Two numbers."""

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 <= self.floor <= 1:
            raise ConfigError(f"floor must lie in [0, 1], got {self.floor}; choose such a number")


@dataclass
class Base:
    """What the outer class inherits."""

    output_dir: Path = Path("runs")
    """Where results go."""


@dataclass
class Outer(Base):
    """A command's settings."""

    learning_rate: float = 2e-4
    """The peak learning rate."""
    steps: int | None = None
    """Optimizer steps; null for whole epochs."""
    lora: bool = True
    """Train adapters only."""
    languages: list[str] = field(default_factory=lambda: ["en", "zh"])
    """Languages of the demo data."""
    ratios: dict[str, float] = field(default_factory=dict)
    """Source to share."""
    label: str | None = None
    """Free text."""
    name: str = "outer"
    """A name that the inner class has too."""
    lifespan: Inner = field(default_factory=lambda: Inner(floor=0.2))
    """The settings of the part."""


@dataclass
class Required:
    """A class with a setting that has no default."""

    path: Path
    """A file."""


def write(folder: Path, text: str) -> Path:
    path = folder / "sft.yaml"
    path.write_text(text, "utf-8")
    return path


def parse(*flags: str, cls: type = Outer) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    add_config_flags(parser, cls)
    return parser.parse_args(flags)


@pytest.mark.parametrize(
    "text",
    [
        "weighting: article\nbounds: [0.5, 1]\n",
        "lifespan: {weighting: article, bounds: [0.5, 1]}\n",
        "lifespan.weighting: article\nlifespan.bounds: [0.5, 1]\n",
        "lifespan:\n  weighting: article\nbounds: [0.5, 1]\n",
    ],
)
def test_flat_dotted_and_nested_yaml_are_the_same(tmp_path, text):
    config = load_config(Outer, write(tmp_path, text))
    assert config == Outer(lifespan=Inner("article", floor=0.2, bounds=(0.5, 1.0)))


def test_values_are_converted(tmp_path):
    text = (
        "learning_rate: 1e-4\nsteps: 1e3\noutput_dir: ~/x\nratios: {a: 1}\n"
        "languages: [zh]\nlabel: '5'\nlora: false\n"
    )
    config = load_config(Outer, write(tmp_path, text))
    assert (config.learning_rate, config.steps, config.lora) == (1e-4, 1000, False)
    assert config.output_dir == Path.home() / "x"
    assert config.ratios == {"a": 1.0}
    assert isinstance(config.ratios["a"], float)
    assert (config.languages, config.label) == (["zh"], "5")


def test_an_empty_file_and_an_empty_section_are_the_defaults(tmp_path):
    assert load_config(Outer, write(tmp_path, "# nothing\n")) == Outer()
    assert load_config(Outer, write(tmp_path, "lifespan:\n")) == Outer()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rat: 1", "learning_rat is not a setting; did you mean learning_rate?"),
        ("weigthing: none", "weigthing is not a setting; did you mean weighting?"),
        ("lifespan: {flor: 1}", "lifespan.flor is not a setting; did you mean floor?"),
        ("qqq: 1", "qqq is not a setting; valid: bounds, "),
        ("lora: 'yes'", "lora must be bool, got 'yes' (str); write true or false"),
        ("lora: 1", "lora must be bool, got 1 (int)"),
        ("steps: 1.5", "steps must be int or null, got 1.5 (float)"),
        ("steps: true", "steps must be int or null, got True (bool)"),
        ("learning_rate: fast", "learning_rate must be float, got 'fast' (str)"),
        ("learning_rate: [1]", "learning_rate must be float, got [1] (list)"),
        ("label: 5", "label must be str or null, got 5 (int)"),
        ("languages: 5", "languages must be a list of str, got 5 (int); write it as [a, b]"),
        ("ratios: [1]", "ratios must be a mapping of str to float, got [1]"),
        ("bounds: [1]", "lifespan.bounds must be a list of float, got [1] (list); it needs exact"),
        ("weighting: progres", "lifespan.weighting must be one of 'progress', 'article', 'none'"),
        ("weighting: progres", "did you mean progress?"),
        ("lifespan: 5", "lifespan must be a mapping with the settings of Inner, got 5 (int)"),
        ("floor: 2", "lifespan.floor must lie in [0, 1], got 2.0"),
        ("floor: 0.3\nlifespan: {floor: 0.4}", "floor is set twice; keep one of the two"),
        ("- a", "must hold a mapping of settings, got list"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_wrong_yaml_is_one_line_with_the_way_out(tmp_path, text, said):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(Outer, path)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(path))
    assert "\n" not in message


def test_a_missing_or_binary_file(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory; check the path"):
        load_config(Outer, tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(Outer, tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_config(Outer, tmp_path / "x.yaml")


def test_a_required_setting(tmp_path):
    with pytest.raises(ConfigError, match="path is required and missing; set it to Path"):
        load_config(Required)
    assert load_config(Required, overrides={"path": "x"}).path == Path("x")


def test_overrides_as_mapping_and_as_text(tmp_path):
    path = write(tmp_path, "floor: 0.3\nsteps: 5\n")
    expected = Outer(steps=None, label="null-ish", lifespan=Inner("none", floor=0.4))
    assert expected == load_config(
        Outer,
        path,
        {"steps": None, "lifespan": {"floor": 0.4}, "weighting": "none", "label": "null-ish"},
    )
    assert expected == load_config(
        Outer, path, ["steps=null", "lifespan.floor=0.4", "weighting=none", "label=null-ish"]
    )
    with pytest.raises(ConfigError, match="'steps' is not an assignment; write name=value"):
        load_config(Outer, path, ["steps"])
    with pytest.raises(ConfigError, match="did you mean steps"):
        load_config(Outer, path, ["step=3"])


def test_flags_override_yaml(tmp_path):
    path = write(tmp_path, "floor: 0.3\nsteps: 5\nlora: false\n")
    flags = [
        "--config", str(path), "--floor", "5e-1", "--lora", "--languages", "en", "fr",
        "--ratios", "a=1", "b=2e-1", "--label", "12", "--lifespan.name", "x", "--bounds", "1", "2",
    ]  # fmt: skip
    config = config_from_args(Outer, parse(*flags))
    assert config == Outer(
        steps=5,
        lora=True,
        languages=["en", "fr"],
        ratios={"a": 1.0, "b": 0.2},
        label="12",
        lifespan=Inner(floor=0.5, name="x", bounds=(1.0, 2.0)),
    )
    assert config_from_args(Outer, parse("--no-lora")) == Outer(lora=False)
    assert config_from_args(Outer, parse()) == Outer()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--steps", "many"], "--steps must be int or null, got 'many' (str)"),
        (["--weighting", "artcle"], "--weighting must be one of 'progress', 'article', 'none'"),
        (["--ratios", "a"], "--ratios takes key=value pairs, got 'a'"),
        (["--ratios", "a=x"], "--ratios must be a mapping of str to float"),
        (["--floor", "7"], "floor must lie in [0, 1], got 7.0"),
    ],
)
def test_wrong_flags_are_config_errors(flags, said):
    with pytest.raises(ConfigError) as caught:
        config_from_args(Outer, parse(*flags))
    assert said in str(caught.value)


def test_help_comes_from_the_strings_under_the_fields(capsys):
    help_texts = field_help(Outer)
    assert help_texts["output_dir"] == "Where results go."
    assert help_texts["label"] == "Free text."
    assert field_help(Inner)["weighting"] == "How samples are weighted, in two lines and 100%."
    with pytest.raises(SystemExit):
        parse("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "--learning-rate LEARNING_RATE The peak learning rate. (float)" in shown
    assert "--lora, --no-lora Train adapters only." in shown
    assert "in two lines and 100%. (one of 'progress', 'article', 'none')" in shown


def test_a_dumped_config_reads_back(tmp_path):
    config = Outer(
        output_dir=Path("课程: x"),
        learning_rate=1e-5,
        steps=3,
        ratios={"a": 0.5},
        lifespan=Inner("none", 0.25),
    )
    dump_config(config, tmp_path / "out" / "config.yaml")
    text = (tmp_path / "out" / "config.yaml").read_text("utf-8")
    assert "# The peak learning rate.\nlearning_rate: 1.0e-05\n" in text
    assert "  # The smallest weight.\n  floor: 0.25\n" in text
    assert load_config(Outer, tmp_path / "out" / "config.yaml") == config
    assert to_dict(config)["lifespan"]["bounds"] == [0.1, 2.0]


def test_a_config_that_raises_its_own_error_is_still_one_line():
    @dataclass
    class Picky:
        count: int = 1

        def __post_init__(self):
            if self.count < 0:
                raise ValueError("count is\nnegative")

    with pytest.raises(ConfigError, match="Picky: count is negative; correct the setting"):
        load_config(Picky, overrides={"count": -1})


def test_one_text_stands_for_a_list_of_one(tmp_path):
    assert load_config(Outer, write(tmp_path, "languages: en")).languages == ["en"]
