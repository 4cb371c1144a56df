"""Short everyday sentences, composed in English and Chinese from the same parts."""

from random import Random

from hf_glm_curriculum.data.demo.draft import Pair
from hf_glm_curriculum.data.demo.word_problems import NAMES

_ACTIONS = """
reads a book|看书
drinks tea|喝茶
walks the dog|遛狗
cooks soup|做汤
plays the piano|弹钢琴
waters the flowers|浇花
writes a letter|写信
rides a bicycle|骑自行车
cleans the kitchen|打扫厨房
paints the fence|刷栅栏
feeds the birds|喂鸟
learns French|学法语
listens to music|听音乐
plays chess|下棋
bakes bread|烤面包
repairs the radio|修收音机
draws a map|画地图
takes photos|拍照
"""
_TIMES = """
in the morning|早上
in the evening|晚上
after lunch|午饭后
on Monday|星期一
on Sunday|星期天
every day|每天
before work|上班前
at noon|中午
on rainy days|下雨天
after school|放学后
"""
_PLACES = """
at home|在家
in the garden|在花园里
in the park|在公园里
near the river|在河边
at the station|在车站
in the library|在图书馆里
under a tree|在树下
at school|在学校
"""


def _table(text: str) -> list[Pair]:
    rows = (row.split("|") for row in text.strip().splitlines())
    return [(english, chinese) for english, chinese in rows]


ACTIONS, TIMES, PLACES = _table(_ACTIONS), _table(_TIMES), _table(_PLACES)


def random_sentence(rng: Random, who: Pair | None = None) -> Pair:
    """Compose one sentence: who does what, where or when."""
    name, action = who or rng.choice(NAMES), rng.choice(ACTIONS)
    time, place = rng.choice(TIMES), rng.choice(PLACES)
    form = rng.randrange(3)
    if form == 0:
        return f"{name[0]} {action[0]} {time[0]}.", f"{name[1]}{time[1]}{action[1]}。"
    if form == 1:
        return f"{name[0]} {action[0]} {place[0]}.", f"{name[1]}{place[1]}{action[1]}。"
    english = f"{name[0]} {action[0]} {place[0]} {time[0]}."
    return english, f"{name[1]}{time[1]}{place[1]}{action[1]}。"
