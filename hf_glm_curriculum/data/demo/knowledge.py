"""General knowledge: elements, planets, works and discoveries, animals, quantities, words."""

from random import Random

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Pair,
    Phrase,
    Task,
    choice_check,
    number_check,
    overlaps,
    phrase_check,
    wording,
)
from hf_glm_curriculum.data.demo.facts import (
    animal_classes,
    creators,
    elements,
    planets,
    quantities,
    young,
)
from hf_glm_curriculum.data.demo.lexicon import article, clear_opposites

_FULL_NAMES = """Lao She|Lu Xun|Bi Sheng|Cao Xueqin|Shi Nai'an|Wu Cheng'en|Luo Guanzhong
Charlotte Brontë|Emily Brontë""".replace("\n", "|").split("|")


def _symbol(rng: Random, level: str) -> Draw:
    pool = elements()[: {"easy": 20, "medium": 36, "hard": None}[level]]
    element, other = rng.sample(pool, 2)
    check = phrase_check(element.symbol, case=True)
    return Draw({"name": element.name}, element.symbol, other.symbol, check, level)


def _element(rng: Random, level: str) -> Draw:
    pool = elements()[: {"easy": 20, "medium": 36, "hard": None}[level]]
    element, other = rng.sample(pool, 2)
    return Draw({"s": element.symbol}, element.name, other.name, phrase_check(element.name), level)


def _atomic_number(rng: Random, level: str) -> Draw:
    pool = elements()[: {"easy": 12, "medium": 36, "hard": None}[level]]
    element = rng.choice(pool)
    wrong = element.number + rng.choice((1, 2, -1 if element.number > 1 else 1))
    fields: dict[str, Phrase] = {"name": element.name}
    return Draw(fields, element.number, wrong, number_check(element.number), level)


def _heavier_element(rng: Random, level: str) -> Draw:
    first, second = rng.sample(elements(), 2)
    large, small = (first, second) if first.number > second.number else (second, first)
    fields: dict[str, Phrase] = {
        "a": first.name,
        "b": second.name,
        "other": small.name,
        "n": large.number,
        "m": small.number,
    }
    check = choice_check(large.name, (large.name, small.name))
    return Draw(fields, large.name, small.name, check, "hard", {"other": large.name})


def _nth_planet(rng: Random, level: str) -> Draw:
    index, wrong = rng.sample(range(8), 2)
    ordinals = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    fields: dict[str, Phrase] = {"k": (ordinals[index], "一二三四五六七八"[index])}
    answer = planets()[index]
    return Draw(fields, answer, planets()[wrong], phrase_check(answer), "easy")


def _closer_planet(rng: Random, level: str) -> Draw:
    first, second = rng.sample(range(8), 2)
    near, far = planets()[min(first, second)], planets()[max(first, second)]
    fields: dict[str, Phrase] = {"a": planets()[first], "b": planets()[second], "other": far}
    return Draw(fields, near, far, choice_check(near, (near, far)), "medium", {"other": near})


def _creator(rng: Random, level: str) -> Draw:
    what, who, known = rng.choice([entry for entry in creators() if entry[2] == level])
    others = [entry[1] for entry in creators() if not overlaps(entry[1], who)]
    # The family name is enough, where it comes last and belongs to one person.
    is_clear = who[0] not in _FULL_NAMES
    family = (who[0].split()[-1], who[1].split("·")[-1]) if is_clear else who
    return Draw({"what": what}, who, rng.choice(others), phrase_check(family), known)


def _animal_class(rng: Random, level: str) -> Draw:
    classes = animal_classes()
    answer, wrong = rng.sample(list(classes), 2)
    animal = rng.choice(classes[answer])
    fields: dict[str, Phrase] = {
        "animal": (f"{article(animal[0])} {animal[0]}", animal[1]),
        "art": (article(answer[0]), ""),
    }
    check = phrase_check(answer, none_of=wrong)
    return Draw(fields, answer, wrong, check, level, {"art": (article(wrong[0]), "")})


def _which_animal(rng: Random, level: str) -> Draw:
    classes = animal_classes()
    kind = rng.choice(list(classes))
    inside = rng.choice(classes[kind])
    outside = rng.sample([a for k, names in classes.items() if k != kind for a in names], 3)
    options: list[Pair] = [inside, *outside]
    rng.shuffle(options)
    english, chinese = zip(*options, strict=True)
    listed = (", ".join(english[:-1]) + " or " + english[-1], "、".join(chinese))
    fields: dict[str, Phrase] = {
        "kind": (f"{article(kind[0])} {kind[0]}", kind[1]),
        "options": listed,
    }
    return Draw(fields, inside, outside[0], choice_check(inside, tuple(options)), level)


def _quantity(rng: Random, level: str) -> Draw:
    known = rng.choice(
        [q for q in quantities() if q.level == ("easy" if level == "easy" else "medium")]
    )
    wrong = known.value + rng.choice((1, 2, -1, 4))
    fields: dict[str, Phrase] = {"question": known.question, "unit": known.unit}
    return Draw(fields, known.value, wrong, number_check(known.value), known.level)


def _young(rng: Random, level: str) -> Draw:
    (animal, baby), (_, other) = rng.sample(young(), 2)
    fields: dict[str, Phrase] = {"animal": (f"{article(animal[0])} {animal[0]}", animal[1])}
    return Draw(fields, baby, other, phrase_check(baby), "easy")


def _opposite(rng: Random, level: str) -> Draw:
    word, answer = rng.choice(clear_opposites())
    others = [w for w, _ in clear_opposites() if w != word and not overlaps(w, answer)]
    wrong = rng.choice(others)
    check = phrase_check(answer)
    return Draw({"word": word}, answer, wrong, check, "easy")


TASKS = (
    Task(
        "element_symbol",
        "knowledge",
        _symbol,
        wording(
            """
            What is the chemical symbol for {name}?
            Which symbol stands for {name} in the periodic table?
            Give the chemical symbol of {name}.""",
            """
            The symbol for {name} is {answer}.
            The chemical symbol is {answer}.""",
        ),
        wording(
            """
            {name}的化学符号是什么？
            {name}元素用什么符号表示？
            写出{name}的元素符号。""",
            """
            {name}的化学符号是{answer}。
            符号是{answer}。""",
        ),
    ),
    Task(
        "element_name",
        "knowledge",
        _element,
        wording(
            """
            Which element has the chemical symbol {s}?
            What element does the symbol {s} stand for?
            Name the element with the symbol {s}.""",
            """
            {s} stands for {answer}.
            The element is {answer}.""",
        ),
        wording(
            """
            化学符号{s}代表哪种元素？
            元素符号{s}是什么元素？""",
            """
            {s}代表{answer}。
            是{answer}元素。""",
        ),
    ),
    Task(
        "atomic_number",
        "knowledge",
        _atomic_number,
        wording(
            """
            What is the atomic number of {name}?
            How many protons does {name} have?
            Give the atomic number of {name}.""",
            """
            The atomic number of {name} is {answer}.
            {name} has {answer} protons.""",
        ),
        wording(
            """
            {name}的原子序数是多少？
            {name}原子有多少个质子？""",
            """
            {name}的原子序数是{answer}。
            是{answer}。""",
        ),
    ),
    Task(
        "heavier_element",
        "knowledge",
        _heavier_element,
        wording(
            """
            Which has the higher atomic number, {a} or {b}?
            {a} or {b}: which has more protons?""",
            """
            {answer} has a higher atomic number than {other}.
            {answer} has the higher atomic number.
            The answer is {answer}.""",
        ),
        wording(
            """
            {a}和{b}哪个原子序数更大？
            {a}与{b}，谁的质子更多？""",
            """
            {answer}的原子序数比{other}大。
            答案是{answer}。""",
        ),
        weight=1.5,
    ),
    Task(
        "nth_planet",
        "knowledge",
        _nth_planet,
        wording(
            """
            Which planet is the {k} from the Sun?
            Name the {k} planet from the Sun.
            What is the {k} planet of the Solar System?""",
            """
            The {k} planet from the Sun is {answer}.
            It is {answer}.""",
        ),
        wording(
            """
            离太阳第{k}近的行星是哪颗？
            太阳系由内向外第{k}颗行星是什么？""",
            """
            第{k}颗行星是{answer}。
            是{answer}。""",
        ),
        weight=0.3,
    ),
    Task(
        "closer_planet",
        "knowledge",
        _closer_planet,
        wording(
            """
            Which planet is closer to the Sun, {a} or {b}?
            Is {a} or {b} nearer to the Sun?""",
            """
            {answer} is closer to the Sun than {other}.
            {answer} is closer.""",
        ),
        wording(
            """
            {a}和{b}哪个离太阳更近？
            {a}与{b}相比，谁更靠近太阳？""",
            """
            {answer}离太阳更近。
            {answer}比{other}离太阳更近。""",
        ),
        weight=0.6,
    ),
    Task(
        "creator",
        "knowledge",
        _creator,
        wording(
            """
            Who created {what}?
            Who is behind {what}?
            Which person do we owe {what} to?
            To whom is {what} credited?""",
            """
            It was {answer}.
            {what} is credited to {answer}.
            That was {answer}.""",
        ),
        wording(
            """
            {what}归功于谁？
            {what}与哪位人物有关？
            我们说起{what}，会想到谁？""",
            """
            是{answer}。
            {what}归功于{answer}。""",
        ),
    ),
    Task(
        "animal_class",
        "knowledge",
        _animal_class,
        wording(
            """
            What kind of animal is {animal}: mammal, bird, fish, reptile, amphibian or insect?
            To which animal class does {animal} belong?
            Is {animal} a mammal, a bird, a fish, a reptile, an amphibian or an insect?""",
            """
            {animal} is {art} {answer}.
            It is {art} {answer}.""",
        ),
        wording(
            """
            {animal}属于哪一类动物？
            {animal}是哺乳动物、鸟类、鱼类、爬行动物、两栖动物还是昆虫？""",
            """
            {animal}属于{answer}。
            {animal}是{answer}。""",
        ),
    ),
    Task(
        "which_animal",
        "knowledge",
        _which_animal,
        wording(
            """
            Which of these is {kind}: {options}?
            {options}: which one is {kind}?
            Pick {kind} from this list: {options}.""",
            """
            The {answer} is {kind}.
            The answer is {answer}.""",
        ),
        wording(
            """
            {options}中，哪个是{kind}？
            下面哪个属于{kind}：{options}？""",
            """
            {answer}是{kind}。
            答案是{answer}。""",
        ),
        weight=1.5,
    ),
    Task(
        "quantity",
        "knowledge",
        _quantity,
        wording(
            """
            How many {question}?
            Do you know how many {question}?
            Tell me how many {question}.""",
            """
            The answer is {answer} {unit}.
            {answer} {unit}.""",
        ),
        wording(
            """
            {question}？
            你知道{question}吗？
            请告诉我{question}。""",
            """
            答案是{answer}{unit}。
            {answer}{unit}。""",
        ),
    ),
    Task(
        "young_animal",
        "knowledge",
        _young,
        wording(
            """
            What do you call a young animal whose mother is {animal}?
            What is the baby of {animal} called?
            Give the word for the young of {animal}.""",
            """
            It is called a {answer}.
            The young of {animal} is a {answer}.""",
        ),
        wording(
            """
            {animal}的幼崽叫什么？
            怎么称呼{animal}的宝宝？""",
            """
            叫{answer}。
            {animal}的幼崽叫{answer}。""",
        ),
        weight=0.3,
    ),
    Task(
        "opposite",
        "knowledge",
        _opposite,
        wording(
            """
            What is the opposite of "{word}"?
            Give an antonym of "{word}".
            Which word means the opposite of "{word}"?""",
            """
            The opposite of "{word}" is "{answer}".
            It is "{answer}".""",
        ),
        wording(
            """
            “{word}”的反义词是什么？
            写出“{word}”的反义词。""",
            """
            “{word}”的反义词是“{answer}”。
            是“{answer}”。""",
        ),
        weight=0.6,
    ),
)
