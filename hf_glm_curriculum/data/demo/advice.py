"""Open-ended advice and how-to answers, composed from goals, readers and tips."""

from random import Random

from hf_glm_curriculum.data.demo.draft import Draw, Pair, Phrase, Task, wording

# A goal in English and Chinese, then its tips, one a line.
_TABLE = """
sleep better|睡得更好
    go to bed at the same time every night = 每晚按时上床
    keep the room dark and cool = 保持房间黑暗凉爽
    avoid screens before bed = 睡前不看屏幕
    skip coffee after noon = 午后不喝咖啡
    take a walk in the evening = 傍晚散散步
learn new vocabulary|背新单词
    use flashcards every day = 每天用单词卡
    write your own sentences = 自己造句
    read short texts aloud = 朗读短文
    review old words after a week = 一周后复习旧单词
    label things at home = 给家里的东西贴标签
save money|存钱
    write down every expense = 记下每笔开销
    cook at home more often = 多在家做饭
    compare prices first = 先比较价格
    set a weekly limit = 设定每周限额
    cancel unused subscriptions = 取消不用的订阅
prepare for an exam|准备考试
    start two weeks early = 提前两周开始
    practise with old papers = 用旧试卷练习
    explain topics to a friend = 把知识讲给朋友听
    take short breaks = 适当休息
    sleep well the night before = 考前一晚睡好
keep houseplants alive|养好室内植物
    check the soil before watering = 浇水前看看土壤
    put them near a window = 放在窗边
    use pots with holes = 用带孔的花盆
    wipe dust from the leaves = 擦去叶子上的灰尘
    feed them in spring = 春天施肥
give a good speech|做好演讲
    begin with a short story = 用小故事开头
    practise aloud = 大声练习
    speak slowly = 说慢一点
    look at the audience = 看着听众
    end with one clear message = 用一个明确的观点收尾
write a clear e-mail|写清楚的邮件
    put the purpose in the subject line = 在主题里写明目的
    keep paragraphs short = 段落要短
    ask one question at a time = 一次只问一个问题
    check the names twice = 核对姓名
    close with a friendly line = 用礼貌的话结尾
start running|开始跑步
    begin with ten minutes = 从十分钟开始
    wear proper shoes = 穿合适的鞋
    run slowly enough to talk = 慢到能说话的速度
    rest every other day = 隔天休息
    note your progress = 记录进步
organise a desk|整理书桌
    throw away old papers = 扔掉旧纸张
    use one box for cables = 用一个盒子收线
    keep only daily tools on top = 桌面只留常用物品
    clean it on Fridays = 每周五打扫
    label the drawers = 给抽屉贴标签
eat more healthily|吃得更健康
    fill half the plate with vegetables = 半盘放蔬菜
    drink water instead of soda = 用水代替汽水
    eat slowly = 细嚼慢咽
    plan meals for the week = 提前安排一周的菜单
    keep fruit in sight = 把水果放在看得见的地方
plan a short trip|安排短途旅行
    book the train early = 早点订火车票
    pack one small bag = 只带一个小包
    check the weather = 查看天气
    leave some free time = 留出空闲时间
    save the address offline = 离线保存地址
make new friends|交新朋友
    join a club = 参加社团
    ask people about their hobbies = 问问别人的爱好
    remember names = 记住名字
    invite someone for tea = 约人喝茶
    listen more than you talk = 多听少说
reduce stress|减轻压力
    breathe slowly for a minute = 慢慢呼吸一分钟
    write a short to-do list = 写简短的待办清单
    go outside every day = 每天出门走走
    say no to extra tasks = 学会拒绝额外的任务
    talk to a friend = 找朋友聊聊
cook rice well|煮好米饭
    rinse it first = 先淘米
    use a tight lid = 盖紧锅盖
    let it rest before serving = 焖一会儿再吃
    measure the water = 量好水
    keep the heat low = 用小火
remember names|记住别人的名字
    repeat the name aloud = 把名字念出来
    link it to a picture = 和画面联系起来
    write it down later = 事后记下来
    use it when saying goodbye = 告别时叫一次
    ask again politely = 礼貌地再问一次
take better photos|拍出更好的照片
    use morning light = 利用早晨的光线
    clean the lens = 擦干净镜头
    keep the horizon level = 保持水平线端正
    move closer = 靠近一些
    take several shots = 多拍几张
use less energy at home|在家节约能源
    switch off lights = 随手关灯
    wash at low temperature = 低温洗衣
    close the curtains at night = 晚上拉好窗帘
    unplug chargers = 拔掉充电器
    use LED lamps = 使用LED灯
learn the guitar|学吉他
    practise fifteen minutes a day = 每天练十五分钟
    learn three chords first = 先学三个和弦
    tune it every time = 每次先调音
    play along with slow songs = 跟着慢歌弹
    record yourself = 录下自己的演奏
choose a book|挑选一本书
    read the first page = 先读第一页
    ask a librarian = 问问图书管理员
    look at the contents = 看看目录
    pick a topic you love = 选喜欢的题材
    try a short one = 试试短篇
work well in a team|在团队中合作
    agree on clear roles = 明确分工
    share news early = 及早分享消息
    thank people = 感谢别人
    keep meetings short = 会议要短
    write decisions down = 把决定写下来
"""
_READERS = (
    ("", ""),
    (" as a student", "（我是学生）"),
    (" as a busy parent", "（我要带孩子，很忙）"),
    (" as a beginner", "（我是新手）"),
    (" after retirement", "（我已经退休）"),
    (" with little time", "（时间不多）"),
    (" on a small budget", "（预算有限）"),
    (" this month", "（就这个月）"),
    (" in winter", "（现在是冬天）"),
    (" without special tools", "（没有专门的工具）"),
    (" together with a friend", "（和朋友一起）"),
    (" in a small flat", "（住的地方不大）"),
    (" while working full time", "（平时要上班）"),
)
_COUNTS = {"easy": 1, "medium": 2, "hard": 3}
_NUMBERS = {1: ("one tip", "一条建议"), 2: ("two tips", "两条建议"), 3: ("three tips", "三条建议")}


def _goals() -> list[tuple[Pair, list[Pair]]]:
    goals: list[tuple[Pair, list[Pair]]] = []
    for row in _TABLE.strip().splitlines():
        if not row.startswith(" "):
            english, chinese = row.split("|")
            goals.append(((english, chinese), []))
            continue
        english, chinese = row.strip().split(" = ")
        goals[-1][1].append((english, chinese))
    return goals


_GOALS = _goals()


def _draw_tips(rng: Random, level: str) -> tuple[dict[str, Phrase], list[Pair]]:
    goal, tips = rng.choice(_GOALS)
    chosen = rng.sample(tips, _COUNTS[level])
    fields: dict[str, Phrase] = {
        "goal": goal,
        "reader": rng.choice(_READERS),
        "count": _NUMBERS[len(chosen)],
    }
    return fields, chosen


def _prose(tips: list[Pair]) -> Pair:
    english = [tip[0] for tip in tips]
    if len(english) > 1:
        english = [", ".join(english[:-1]) + " and " + english[-1]]
    return english[0], "，".join(tip[1] for tip in tips)


def _advice(rng: Random, level: str) -> Draw:
    fields, tips = _draw_tips(rng, level)
    return Draw(fields, _prose(tips), None, None, level)


def _tip_list(rng: Random, level: str) -> Draw:
    fields, tips = _draw_tips(rng, "medium" if level == "easy" else level)
    others = [t for goal, known in _GOALS for t in known if goal != fields["goal"]]
    # One tip too many breaks the number asked for.
    too_many = [*tips, rng.choice(others)]
    check = {"kind": "format", "constraints": [{"rule": "numbered", "count": len(tips)}]}
    return Draw(fields, _numbered(tips), _numbered(too_many), check, level)


def _numbered(tips: list[Pair]) -> Pair:
    english = "\n".join(
        f"{i}. {tip[0][0].upper()}{tip[0][1:]}." for i, tip in enumerate(tips, start=1)
    )
    chinese = "\n".join(f"{i}. {tip[1]}。" for i, tip in enumerate(tips, start=1))
    return english, chinese


TASKS = (
    Task(
        "advice",
        "advice",
        _advice,
        wording(
            """
            How can I {goal}{reader}?
            What helps to {goal}{reader}?
            I want to {goal}{reader}. Any advice?
            What would you do to {goal}{reader}?
            Please advise me: how do I {goal}{reader}?
            Share {count} on how to {goal}{reader}.""",
            """
            {answer}.
            It helps to {answer}.
            I would {answer}.
            To {goal}, {answer}.
            Start small: {answer}.""",
        ),
        wording(
            """
            怎样才能{goal}{reader}？
            我想{goal}{reader}，有什么建议？
            如何{goal}{reader}？
            请给我{count}：怎么{goal}{reader}。""",
            """
            可以{answer}。
            建议{answer}。
            想{goal}，不妨{answer}。
            先从小事做起：{answer}。""",
        ),
        brief=False,
        weight=2.0,
    ),
    Task(
        "tip_list",
        "advice",
        _tip_list,
        wording(
            """
            Give me a numbered list of {count} to {goal}{reader}.
            List {count} to {goal}{reader}, numbered.""",
            "{answer}",
        ),
        wording(
            """
            请用编号列出{count}：如何{goal}{reader}。
            列出{count}帮我{goal}{reader}，要编号。""",
            "{answer}",
        ),
        brief=False,
        verbatim=True,
    ),
)
