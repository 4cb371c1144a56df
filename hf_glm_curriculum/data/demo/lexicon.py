"""Everyday words in English and Chinese, by group, with plurals and measure words."""

from functools import cache

from hf_glm_curriculum.data.demo.draft import Pair

_GROUPS = """
fruit|水果
    apple 苹果|banana 香蕉|orange 橙子|grape 葡萄|pear 梨
    peach 桃子|mango 芒果|cherry 樱桃|plum 李子|lemon 柠檬
vegetable|蔬菜
    carrot 胡萝卜|cabbage 卷心菜|onion 洋葱|spinach 菠菜|potato 土豆
    broccoli 西兰花|celery 芹菜|radish 小红萝卜|lettuce 生菜|garlic 大蒜
animal|动物
    dog 狗|cat 猫|horse 马|cow 牛|tiger 老虎
    lion 狮子|elephant 大象|rabbit 兔子|monkey 猴子|panda 熊猫
    wolf 狼|fox 狐狸
bird|鸟
    eagle 老鹰|sparrow 麻雀|penguin 企鹅|owl 猫头鹰|swan 天鹅
    parrot 鹦鹉|crow 乌鸦|duck 鸭子
tool|工具
    hammer 锤子|saw 锯子|screwdriver 螺丝刀|drill 电钻|axe 斧头
    shovel 铲子|wrench 扳手|chisel 凿子
vehicle|交通工具
    car 汽车|bus 公交车|train 火车|bicycle 自行车|truck 卡车
    ship 轮船|plane 飞机|tram 有轨电车
instrument|乐器
    piano 钢琴|violin 小提琴|guitar 吉他|drum 鼓|flute 长笛
    trumpet 小号|cello 大提琴|harp 竖琴
colour|颜色
    red 红色|blue 蓝色|green 绿色|yellow 黄色|black 黑色
    white 白色|purple 紫色|brown 棕色|grey 灰色|pink 粉色
piece of furniture|家具
    table 桌子|chair 椅子|sofa 沙发|bed 床|desk 书桌
    wardrobe 衣柜|bookcase 书架|stool 凳子
piece of clothing|衣物
    shirt 衬衫|coat 外套|hat 帽子|sock 袜子|scarf 围巾
    glove 手套|skirt 裙子|sweater 毛衣
sport|体育运动
    football 足球|basketball 篮球|tennis 网球|swimming 游泳|cycling 骑行
    skiing 滑雪|boxing 拳击|rowing 赛艇
job|职业
    teacher 老师|doctor 医生|nurse 护士|farmer 农民|pilot 飞行员
    cook 厨师|lawyer 律师|engineer 工程师
"""
_PLURALS = {
    "piece of furniture": "pieces of furniture",
    "piece of clothing": "pieces of clothing",
}
_THINGS = """
apple|apples|苹果|个
banana|bananas|香蕉|根
egg|eggs|鸡蛋|个
book|books|书|本
pen|pens|钢笔|支
cup|cups|杯子|个
chair|chairs|椅子|把
table|tables|桌子|张
cat|cats|猫|只
dog|dogs|狗|只
horse|horses|马|匹
fish|fish|鱼|条
bird|birds|鸟|只
tree|trees|树|棵
flower|flowers|花|朵
car|cars|汽车|辆
bicycle|bicycles|自行车|辆
house|houses|房子|座
letter|letters|信|封
picture|pictures|画|幅
map|maps|地图|张
key|keys|钥匙|把
coat|coats|外套|件
hat|hats|帽子|顶
shoe|shoes|鞋|只
ticket|tickets|票|张
lamp|lamps|灯|盏
boat|boats|船|艘
bridge|bridges|桥|座
mirror|mirrors|镜子|面
umbrella|umbrellas|雨伞|把
knife|knives|刀|把
watch|watches|手表|块
box|boxes|箱子|个
"""
_OPPOSITES = """
hot|热|cold|冷
big|大|small|小
tall|高|short|矮
long|长|short|短
fast|快|slow|慢
old|旧|new|新
rich|富|poor|穷
full|满|empty|空
open|开|closed|关
heavy|重|light|轻
hard|硬|soft|软
wet|湿|dry|干
strong|强|weak|弱
clean|干净|dirty|脏
happy|高兴|sad|难过
early|早|late|晚
near|近|far|远
cheap|便宜|expensive|贵
deep|深|shallow|浅
thick|厚|thin|薄
loud|吵闹|quiet|安静
easy|容易|difficult|困难
bright|明亮|dark|黑暗
wide|宽|narrow|窄
left|左|right|右
up|上|down|下
inside|里面|outside|外面
begin|开始|end|结束
buy|买|sell|卖
win|赢|lose|输
"""


# "short" is the opposite of "tall" and of "long".
_AMBIGUOUS = {"short", "long", "tall", "old", "hard", "light", "right", "thin", "dark", "low"}


def read_groups(table: str) -> dict[Pair, tuple[Pair, ...]]:
    """Read a table of groups: a name row, then indented rows of "english 中文" entries."""
    found: dict[Pair, tuple[Pair, ...]] = {}
    name: Pair = ("", "")
    for row in table.strip().splitlines():
        if row.startswith(" "):
            entries = (entry.split() for entry in row.strip().split("|"))
            found[name] += tuple((english, chinese) for english, chinese in entries)
        else:
            english, chinese = row.split("|")
            name = (english, chinese)
            found[name] = ()
    return found


@cache
def groups() -> dict[Pair, tuple[Pair, ...]]:
    """Return the word groups: (English, Chinese) group name to its words."""
    return read_groups(_GROUPS)


@cache
def things() -> tuple[tuple[str, str, str, str], ...]:
    """Return countable things: singular, plural, Chinese noun, Chinese measure word."""
    rows = (row.split("|") for row in _THINGS.strip().splitlines())
    return tuple((one, many, noun, measure) for one, many, noun, measure in rows)


@cache
def opposites() -> tuple[tuple[Pair, Pair], ...]:
    """Return pairs of opposites."""
    rows = (row.split("|") for row in _OPPOSITES.strip().splitlines())
    return tuple(((a, a_zh), (b, b_zh)) for a, a_zh, b, b_zh in rows)


@cache
def clear_opposites() -> tuple[tuple[Pair, Pair], ...]:
    """Return (word, opposite) in both directions, without words that have two opposites."""
    both = [pair for first, second in opposites() for pair in ((first, second), (second, first))]
    return tuple(pair for pair in both if pair[0][0] not in _AMBIGUOUS)


def plural_of(group: str) -> str:
    """Return the English plural of a group name."""
    if group in _PLURALS:
        return _PLURALS[group]
    return group + "s"


def article(word: str) -> str:
    """Return "a" or "an" for an English word."""
    return "an" if word[:1].lower() in "aeiou" else "a"
