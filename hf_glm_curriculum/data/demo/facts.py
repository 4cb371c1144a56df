"""Facts about elements, planets, creators, animals and quantities, in English and Chinese."""

from functools import cache
from typing import NamedTuple

from hf_glm_curriculum.data.demo.draft import Pair
from hf_glm_curriculum.data.demo.lexicon import read_groups

_ELEMENTS = """
1 H hydrogen 氢|2 He helium 氦|3 Li lithium 锂|4 Be beryllium 铍|5 B boron 硼
6 C carbon 碳|7 N nitrogen 氮|8 O oxygen 氧|9 F fluorine 氟|10 Ne neon 氖
11 Na sodium 钠|12 Mg magnesium 镁|13 Al aluminium 铝|14 Si silicon 硅|15 P phosphorus 磷
16 S sulfur 硫|17 Cl chlorine 氯|18 Ar argon 氩|19 K potassium 钾|20 Ca calcium 钙
21 Sc scandium 钪|22 Ti titanium 钛|23 V vanadium 钒|24 Cr chromium 铬|25 Mn manganese 锰
26 Fe iron 铁|27 Co cobalt 钴|28 Ni nickel 镍|29 Cu copper 铜|30 Zn zinc 锌
31 Ga gallium 镓|32 Ge germanium 锗|33 As arsenic 砷|34 Se selenium 硒|35 Br bromine 溴
36 Kr krypton 氪|47 Ag silver 银|50 Sn tin 锡|53 I iodine 碘|54 Xe xenon 氙
56 Ba barium 钡|74 W tungsten 钨|78 Pt platinum 铂|79 Au gold 金|80 Hg mercury 汞
82 Pb lead 铅|86 Rn radon 氡|88 Ra radium 镭|92 U uranium 铀|94 Pu plutonium 钚
"""
_PLANETS = """Mercury 水星|Venus 金星|Earth 地球|Mars 火星
Jupiter 木星|Saturn 土星|Uranus 天王星|Neptune 海王星"""
_CREATORS = """
the play Hamlet|《哈姆雷特》|William Shakespeare|莎士比亚|easy
the play Romeo and Juliet|《罗密欧与朱丽叶》|William Shakespeare|莎士比亚|easy
the novel Pride and Prejudice|《傲慢与偏见》|Jane Austen|简·奥斯汀|easy
the novel Oliver Twist|《雾都孤儿》|Charles Dickens|狄更斯|easy
the novel War and Peace|《战争与和平》|Leo Tolstoy|托尔斯泰|easy
the novel Anna Karenina|《安娜·卡列尼娜》|Leo Tolstoy|托尔斯泰|medium
the novel Crime and Punishment|《罪与罚》|Fyodor Dostoevsky|陀思妥耶夫斯基|medium
the novel Don Quixote|《堂吉诃德》|Miguel de Cervantes|塞万提斯|easy
the epic The Odyssey|《奥德赛》|Homer|荷马|easy
the drama Faust|《浮士德》|Johann Wolfgang von Goethe|歌德|medium
the novel Les Misérables|《悲惨世界》|Victor Hugo|雨果|easy
the novel Frankenstein|《弗兰肯斯坦》|Mary Shelley|玛丽·雪莱|medium
the novel Animal Farm|《动物农场》|George Orwell|乔治·奥威尔|easy
the novel The Old Man and the Sea|《老人与海》|Ernest Hemingway|海明威|easy
the novel Moby-Dick|《白鲸》|Herman Melville|梅尔维尔|medium
the novel The Adventures of Tom Sawyer|《汤姆·索亚历险记》|Mark Twain|马克·吐温|easy
the novel Dream of the Red Chamber|《红楼梦》|Cao Xueqin|曹雪芹|medium
the novel Journey to the West|《西游记》|Wu Cheng'en|吴承恩|medium
the novel Romance of the Three Kingdoms|《三国演义》|Luo Guanzhong|罗贯中|medium
the novel Water Margin|《水浒传》|Shi Nai'an|施耐庵|hard
the novel Rickshaw Boy|《骆驼祥子》|Lao She|老舍|hard
the story The True Story of Ah Q|《阿Q正传》|Lu Xun|鲁迅|medium
the story The Metamorphosis|《变形记》|Franz Kafka|卡夫卡|medium
the book The Little Prince|《小王子》|Antoine de Saint-Exupéry|圣埃克苏佩里|medium
the poem The Divine Comedy|《神曲》|Dante Alighieri|但丁|medium
the novel The Hobbit|《霍比特人》|J. R. R. Tolkien|托尔金|easy
the novel Dracula|《德古拉》|Bram Stoker|布拉姆·斯托克|hard
the novel Gulliver's Travels|《格列佛游记》|Jonathan Swift|斯威夫特|medium
the novel Robinson Crusoe|《鲁滨逊漂流记》|Daniel Defoe|笛福|medium
the novel Jane Eyre|《简·爱》|Charlotte Brontë|夏洛蒂·勃朗特|medium
the novel Wuthering Heights|《呼啸山庄》|Emily Brontë|艾米莉·勃朗特|hard
the painting Mona Lisa|《蒙娜丽莎》|Leonardo da Vinci|达·芬奇|easy
the painting The Starry Night|《星夜》|Vincent van Gogh|梵高|easy
the painting Guernica|《格尔尼卡》|Pablo Picasso|毕加索|medium
the painting The Night Watch|《夜巡》|Rembrandt|伦勃朗|medium
the painting Girl with a Pearl Earring|《戴珍珠耳环的少女》|Johannes Vermeer|维米尔|medium
the painting The Scream|《呐喊》这幅画|Edvard Munch|蒙克|medium
the painting The Birth of Venus|《维纳斯的诞生》|Sandro Botticelli|波提切利|hard
the opera The Magic Flute|《魔笛》|Wolfgang Amadeus Mozart|莫扎特|medium
the concertos The Four Seasons|《四季》协奏曲|Antonio Vivaldi|维瓦尔第|medium
the ballet Swan Lake|《天鹅湖》|Pyotr Ilyich Tchaikovsky|柴可夫斯基|medium
the piano piece Für Elise|《致爱丽丝》|Ludwig van Beethoven|贝多芬|easy
the general theory of relativity|广义相对论|Albert Einstein|爱因斯坦|easy
the law of universal gravitation|万有引力定律|Isaac Newton|牛顿|easy
the theory of natural selection|自然选择学说|Charles Darwin|达尔文|easy
the first periodic table of 1869|1869年的元素周期表|Dmitri Mendeleev|门捷列夫|medium
the discovery of penicillin|青霉素的发现|Alexander Fleming|弗莱明|easy
the discovery of X-rays|X射线的发现|Wilhelm Röntgen|伦琴|medium
the smallpox vaccine|天花疫苗|Edward Jenner|詹纳|medium
the invention of dynamite|炸药的发明|Alfred Nobel|诺贝尔|easy
the World Wide Web|万维网|Tim Berners-Lee|蒂姆·伯纳斯-李|medium
the first electric battery|最早的化学电池|Alessandro Volta|伏打|medium
the Linux kernel|Linux内核|Linus Torvalds|林纳斯·托瓦兹|medium
the programming language Python|编程语言Python|Guido van Rossum|吉多·范罗苏姆|medium
the laws of planetary motion|行星运动定律|Johannes Kepler|开普勒|medium
the printing press of Mainz|美因茨的印刷机|Johannes Gutenberg|古腾堡|medium
movable clay type in Song China|宋代的泥活字印刷术|Bi Sheng|毕昇|hard
"""
_ANIMALS = """
mammal|哺乳动物
    dog 狗|whale 鲸鱼|bat 蝙蝠|dolphin 海豚|elephant 大象
    tiger 老虎|mouse 老鼠|kangaroo 袋鼠|horse 马|rabbit 兔子
bird|鸟类
    penguin 企鹅|eagle 老鹰|ostrich 鸵鸟|owl 猫头鹰|sparrow 麻雀
    duck 鸭子|parrot 鹦鹉|swan 天鹅
fish|鱼类
    shark 鲨鱼|salmon 三文鱼|tuna 金枪鱼|carp 鲤鱼|seahorse 海马
    goldfish 金鱼|trout 鳟鱼
reptile|爬行动物
    snake 蛇|crocodile 鳄鱼|lizard 蜥蜴|turtle 海龟|gecko 壁虎
    chameleon 变色龙
amphibian|两栖动物
    frog 青蛙|toad 蟾蜍|newt 蝾螈|salamander 火蜥蜴
insect|昆虫
    bee 蜜蜂|ant 蚂蚁|butterfly 蝴蝶|beetle 甲虫|mosquito 蚊子
    grasshopper 蚱蜢|dragonfly 蜻蜓
"""
_QUANTITIES = """
sides does a triangle have|三角形有几条边|3|sides|条边|easy
sides does a hexagon have|六边形有几条边|6|sides|条边|easy
sides does a pentagon have|五边形有几条边|5|sides|条边|easy
sides does an octagon have|八边形有几条边|8|sides|条边|easy
faces does a cube have|正方体有几个面|6|faces|个面|easy
edges does a cube have|正方体有几条棱|12|edges|条棱|medium
corners does a cube have|正方体有几个顶点|8|corners|个顶点|medium
letters are in the English alphabet|英文字母表有多少个字母|26|letters|个字母|easy
squares does a chessboard have|国际象棋棋盘有多少格|64|squares|格|medium
keys does a standard piano have|标准钢琴有多少个琴键|88|keys|个琴键|medium
strings does a violin have|小提琴有几根弦|4|strings|根弦|easy
strings does a standard guitar have|普通吉他有几根弦|6|strings|根弦|easy
cards are in a standard deck without jokers|一副去掉大小王的扑克牌有多少张|52|cards|张|medium
players does a football team field|一支足球队上场几名球员|11|players|名球员|easy
players does a basketball team field|一支篮球队上场几名球员|5|players|名球员|easy
players does a volleyball team field|一支排球队上场几名球员|6|players|名球员|medium
players does a baseball team field|一支棒球队上场防守几名球员|9|players|名球员|medium
legs does a spider have|蜘蛛有几条腿|8|legs|条腿|easy
legs does an ant have|蚂蚁有几条腿|6|legs|条腿|easy
arms does an octopus have|章鱼有几条腕足|8|arms|条腕足|easy
planets are in the Solar System|太阳系有几颗行星|8|planets|颗行星|easy
months of the year have 31 days|一年中有几个月是31天|7|months|个月|medium
days are in a leap year|闰年有多少天|366|days|天|easy
teeth does an adult human usually have|成年人通常有多少颗牙齿|32|teeth|颗牙齿|medium
chambers does the human heart have|人的心脏有几个腔|4|chambers|个腔|medium
colours are on a traffic light|交通信号灯有几种颜色|3|colours|种颜色|easy
rings are on the Olympic flag|奥运会会旗上有几个环|5|rings|个环|easy
stars are on the flag of China|中国国旗上有几颗星|5|stars|颗星|medium
stripes are on the flag of the United States|美国国旗上有多少条条纹|13|stripes|条条纹|medium
minutes are in a football match|足球比赛常规时间有多少分钟|90|minutes|分钟|easy
zodiac animals are in the Chinese calendar|中国农历有几个生肖|12|animals|个生肖|easy
bits are in a byte|一个字节有多少位|8|bits|位|easy
"""
_YOUNG = """
dog|狗|puppy|小狗
cat|猫|kitten|小猫
cow|牛|calf|小牛
horse|马|foal|小马
sheep|羊|lamb|小羊
pig|猪|piglet|小猪
hen|母鸡|chick|小鸡
duck|鸭子|duckling|小鸭
bear|熊|cub|小熊
frog|青蛙|tadpole|蝌蚪
goose|鹅|gosling|小鹅
deer|鹿|fawn|小鹿
"""


class Element(NamedTuple):
    """A chemical element."""

    number: int
    symbol: str
    name: Pair


class Quantity(NamedTuple):
    """A number worth knowing, with its question and the noun it counts."""

    question: Pair
    value: int
    unit: Pair
    level: str


@cache
def elements() -> tuple[Element, ...]:
    """Return the elements 1 to 36 and common heavier ones."""
    entries = [e.split() for row in _ELEMENTS.strip().splitlines() for e in row.split("|")]
    return tuple(Element(int(n), symbol, (name, zh)) for n, symbol, name, zh in entries)


@cache
def planets() -> tuple[Pair, ...]:
    """Return the planets from the Sun outwards."""
    names = [entry.split() for entry in _PLANETS.replace("\n", "|").split("|")]
    return tuple((english, chinese) for english, chinese in names)


@cache
def creators() -> tuple[tuple[Pair, Pair, str], ...]:
    """Return works and discoveries: (what, who, level)."""
    rows = (row.split("|") for row in _CREATORS.strip().splitlines())
    return tuple(((what, zh), (who, who_zh), level) for what, zh, who, who_zh, level in rows)


@cache
def animal_classes() -> dict[Pair, tuple[Pair, ...]]:
    """Return animals by class."""
    return read_groups(_ANIMALS)


@cache
def quantities() -> tuple[Quantity, ...]:
    """Return numbers worth knowing."""
    rows = (row.split("|") for row in _QUANTITIES.strip().splitlines())
    return tuple(
        Quantity((question, zh), int(value), (unit, unit_zh), level)
        for question, zh, value, unit, unit_zh, level in rows
    )


@cache
def young() -> tuple[tuple[Pair, Pair], ...]:
    """Return animals and the word for their young."""
    rows = (row.split("|") for row in _YOUNG.strip().splitlines())
    return tuple(((animal, zh), (baby, baby_zh)) for animal, zh, baby, baby_zh in rows)
