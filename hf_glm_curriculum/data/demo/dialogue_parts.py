"""Scripts of customer dialogues: turns with slots, in English and Chinese."""

from typing import NamedTuple


class Turn(NamedTuple):
    """One turn of a script: who speaks, whether it may be left out, wordings by language."""

    speaker: str
    is_optional: bool
    wordings: dict[str, list[str]]


# A question mark marks a turn that may be left out; each line is one wording.
_SCRIPTS = """
# refund
user:
    en Hello, I would like a refund for my {item}.
    en Hi, the {item} I bought is {fault}. I want my money back.
    zh 你好，我想退掉买的{item}。
    zh 您好，我买的{item}{fault}，想退款。
agent:
    en I am sorry to hear that. May I have the order number?
    en Let me look into it. What is your order number?
    zh 很抱歉给您带来不便，请提供订单号。
    zh 我来查一下，请问订单号是多少？
user:
    en It is {order}.
    en The order number is {order}.
    zh 是{order}。
    zh 订单号是{order}。
agent?:
    en Thank you. One moment, please.
    en Thanks, I am checking.
    zh 谢谢，请稍等。
    zh 好的，正在查询。
agent:
    en I see it: one {item} for {price} dollars. When did it arrive?
    en Found it, {price} dollars for the {item}. Which day did you get it?
    zh 查到了，{item}一件，{price}元。请问哪天收到的？
    zh 找到了，{item}的价格是{price}元，您是哪天收到的？
user:
    en It came on {date}.
    en I got it on {date}.
    zh {date}收到的。
    zh 是{date}到的。
user?:
    en I have not used it at all.
    en The box is still here.
    zh 我一次也没用过。
    zh 包装还在。
agent:
    en What is wrong with it?
    en Could you tell me the reason?
    zh 请问有什么问题？
    zh 方便说一下原因吗？
user:
    en The {item} is {fault}.
    en Sadly it is {fault}.
    zh {item}{fault}。
    zh 打开就发现{fault}。
agent:
    en Since it arrived on {date}, the return is free. Where should the refund go?
    en The return is free. Which account should get the money?
    zh 因为是{date}收到的，可以免费退货。退款退到哪里？
    zh 可以免费退货，请问退到哪个账户？
user:
    en To my card ending in {card}, please.
    en The card with the last digits {card}.
    zh 退到尾号{card}的银行卡。
    zh 请退到尾号{card}的卡上。
agent:
    en Done: {price} dollars for order {order} go to the card ending in {card} in {days} days.
    zh 已办理：订单{order}的{price}元将在{days}天内退到尾号{card}的卡。
user:
    en Great, thank you!
    en Thanks for the quick help.
    zh 太好了，谢谢！
    zh 谢谢，处理得很快。
agent:
    en You are welcome. Goodbye!
    en Gladly. Have a nice day.
    zh 不客气，再见！
    zh 很高兴为您服务，祝您愉快。
# delivery
user:
    en Where is my parcel? It should have come by now.
    en My {item} has not arrived yet.
    zh 我的包裹到哪了？早该到了。
    zh 我买的{item}还没有送到。
agent:
    en Could you give me the order number?
    en I will check. What is the order number?
    zh 请提供一下订单号。
    zh 我帮您查，订单号是多少？
user:
    en {order}.
    en Order {order}.
    zh {order}。
    zh 订单号{order}。
agent:
    en The parcel with the {item} is in {city}.
    en I see that the {item} reached {city} yesterday.
    zh 装有{item}的包裹目前在{city}。
    zh {item}昨天已经到了{city}。
user?:
    en That is quite far away.
    en Why does it take so long?
    zh 还挺远的。
    zh 怎么这么慢？
agent?:
    en The weather slowed us down.
    en There were many parcels this week.
    zh 受天气影响有些延误。
    zh 这周包裹比较多。
user:
    en When will it get here?
    en Which day can I expect it?
    zh 什么时候能到？
    zh 预计哪天送达？
agent:
    en It should arrive on {date}.
    en The plan says {date}.
    zh 预计{date}送达。
    zh 计划是{date}送到。
user:
    en I am away then. Please bring it to my neighbour {name}.
    en Can {name} next door take it?
    zh 那天我不在，请交给邻居{name}。
    zh 可以让隔壁的{name}代收吗？
agent:
    en Noted. The phone number, please?
    en Sure. How can the driver reach you?
    zh 好的，请留一个电话。
    zh 没问题，快递员怎么联系您？
user:
    en My number is {phone}.
    en Call {phone}.
    zh 我的电话是{phone}。
    zh 请打{phone}。
agent:
    en Order {order} goes to {name} on {date}; the driver will call {phone}.
    zh 订单{order}将于{date}交给{name}，快递员会打{phone}。
user:
    en Perfect.
    en That works, thanks.
    zh 好的。
    zh 可以，谢谢。
agent:
    en You are welcome. Goodbye!
    en Gladly. Have a nice day.
    zh 不客气，再见！
    zh 很高兴为您服务，祝您愉快。
# hotel
user:
    en I want to book a room in {city}.
    en Do you have a room in {city}?
    zh 我想在{city}订一间房。
    zh {city}还有房间吗？
agent:
    en With pleasure. From which day?
    en Sure. When do you arrive?
    zh 好的，请问哪天入住？
    zh 可以，您什么时候到？
user:
    en From {date}, for {nights} nights.
    en I arrive on {date} and stay {nights} nights.
    zh {date}入住，住{nights}晚。
    zh {date}到，一共{nights}晚。
user?:
    en It should be quiet.
    en A view would be nice.
    zh 希望安静一点。
    zh 最好能看到风景。
agent:
    en A single room costs {price} dollars a night. Is that all right?
    en We have one for {price} dollars a night.
    zh 单人间每晚{price}元，可以吗？
    zh 有一间每晚{price}元的。
user:
    en Yes, that is fine.
    en Good, I will take it.
    zh 可以。
    zh 好，就订这间。
agent:
    en What name may I put down?
    en Under which name?
    zh 请问以谁的名字预订？
    zh 预订人姓名是？
user:
    en {name}.
    en Please use the name {name}.
    zh {name}。
    zh 写{name}就行。
agent?:
    en Would you like breakfast?
    en Do you need parking?
    zh 需要早餐吗？
    zh 需要停车位吗？
user:
    en Please send the confirmation to {mail}.
    en My e-mail is {mail}.
    zh 确认信请发到{mail}。
    zh 我的邮箱是{mail}。
agent:
    en Booked for {name}: {city}, {nights} nights from {date}, {price} dollars each, code {order}.
    zh 已为{name}预订：{city}，{date}起{nights}晚，每晚{price}元，预订号{order}。
user?:
    en Can I cancel it?
    en What if my train is late?
    zh 可以取消吗？
    zh 火车晚点怎么办？
agent:
    en You can cancel until two days before {date}; a mail goes to {mail}.
    zh {date}前两天都可以取消，确认信已发到{mail}。
user:
    en Thank you very much.
    en Wonderful.
    zh 非常感谢。
    zh 太好了。
agent:
    en You are welcome. Goodbye!
    en Gladly. Have a nice day.
    zh 不客气，再见！
    zh 很高兴为您服务，祝您愉快。
# repair
user:
    en My {item} is {fault}. Can you repair it?
    en Do you fix a {item} that is {fault}?
    zh 我的{item}{fault}，能修吗？
    zh {item}{fault}，你们能修吗？
agent:
    en Yes. How old is it?
    en We can try. When did you buy it?
    zh 可以，用了多久了？
    zh 可以试试，什么时候买的？
user:
    en I bought it on {date}.
    en It is from {date}.
    zh {date}买的。
    zh 是{date}买的。
agent:
    en Then the warranty still holds. What is the serial number?
    en Good, that is covered. The serial number, please?
    zh 那还在保修期。请提供序列号。
    zh 可以保修，请问序列号是多少？
user:
    en The number on the back is {order}.
    en It says {order}.
    zh 背面写着{order}。
    zh 序列号是{order}。
user?:
    en How long will it take?
    en Is it expensive?
    zh 要修多久？
    zh 贵不贵？
agent:
    en It takes {days} days and costs {price} dollars without the warranty; for you it is free.
    zh 需要{days}天，不在保修期要{price}元，您这次免费。
user:
    en Good. Where do I bring it?
    en Fine. What is the address?
    zh 好的，送到哪里？
    zh 可以，地址在哪？
agent:
    en To our shop in {city}. Ask for {name}.
    en Bring it to the {city} branch; {name} will help you.
    zh 送到我们在{city}的门店，找{name}。
    zh 请送到{city}分店，{name}会接待您。
user:
    en Please call me when it is ready: {phone}.
    en My phone is {phone}.
    zh 修好请打{phone}。
    zh 我的电话是{phone}。
agent:
    en So {name} in {city} takes the {item} with number {order} and calls {phone} after {days} days.
    zh 那么{city}的{name}接收序列号{order}的{item}，{days}天后打{phone}通知您。
user:
    en Thanks.
    en Great, see you.
    zh 谢谢。
    zh 好的，再见。
agent:
    en You are welcome. Goodbye!
    en Gladly. Have a nice day.
    zh 不客气，再见！
    zh 很高兴为您服务，祝您愉快。
"""
ITEMS = (
    ("kettle", "水壶"), ("lamp", "台灯"), ("headset", "耳机"), ("backpack", "背包"),
    ("keyboard", "键盘"), ("toaster", "烤面包机"), ("watch", "手表"), ("fan", "风扇"),
    ("printer", "打印机"), ("bicycle pump", "打气筒"), ("camera", "相机"), ("tent", "帐篷"),
)  # fmt: skip
FAULTS = (
    ("broken", "坏了"), ("too loud", "声音太大"), ("scratched", "有划痕"), ("leaking", "漏水"),
    ("not working", "不能用"), ("the wrong colour", "颜色不对"), ("missing a part", "少了零件"),
)  # fmt: skip
CITIES = (
    ("Lisbon", "里斯本"), ("Vienna", "维也纳"), ("Oslo", "奥斯陆"), ("Prague", "布拉格"),
    ("Dublin", "都柏林"), ("Seoul", "首尔"), ("Lima", "利马"), ("Nairobi", "内罗毕"),
)  # fmt: skip


def scripts() -> dict[str, list[Turn]]:
    """Read the scripts: topic to its turns."""
    found: dict[str, list[Turn]] = {}
    turns: list[Turn] = []
    for row in _SCRIPTS.strip().splitlines():
        if row.startswith("# "):
            turns = found.setdefault(row.removeprefix("# "), [])
        elif row.startswith("    "):
            language, text = row.strip().split(" ", 1)
            turns[-1].wordings[language].append(text)
        else:
            speaker = row.removesuffix(":")
            is_optional = speaker.endswith("?")
            turns.append(Turn(speaker.removesuffix("?"), is_optional, {"en": [], "zh": []}))
    return found
