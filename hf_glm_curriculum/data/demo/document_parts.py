"""Building blocks of long documents: topics, clauses with slots, and facts to plant."""

import re
from random import Random

from hf_glm_curriculum.data.demo.draft import Pair

# Topic of a section, then clause templates, English and Chinese in turn; {…} are slots.
_CLAUSES = """
Scope|适用范围
    These rules apply to every {person} who uses the {place}.
    凡使用{place}的{person}均适用本规定。
    They take effect {days} days after publication.
    本规定自公布之日起{days}日后施行。
    Where a special rule exists for the {place}, the special rule comes first.
    {place}另有专门规定的，从其规定。
    The {office} decides in cases of doubt.
    如有疑义，由{office}解释。
Registration|登记
    Each {person} registers with the {office} within {days} days.
    {person}应当在{days}日内向{office}登记。
    The form is signed by hand and kept for {years} years.
    登记表应当亲笔签名，并保存{years}年。
    Changes of address are reported to the {office} in writing.
    地址变更应当书面通知{office}。
    A registration without a {paper} is not complete.
    未提交{paper}的，登记不完整。
Fees|费用
    The {office} issues an invoice for use of the {place}.
    {office}就使用{place}开具账单。
    An invoice is paid within {days} days of its date.
    账单应当自开具之日起{days}日内付清。
    Unpaid amounts are reminded twice before the {person} is excluded.
    欠费经两次催告仍未支付的，可以暂停{person}的使用资格。
    A refund needs the original {paper}.
    申请退款应当出示{paper}原件。
Use of rooms|场所使用
    The {place} is booked at least {days} days ahead.
    使用{place}应当至少提前{days}日预约。
    Food is not allowed in the {place}.
    {place}内禁止饮食。
    Whoever leaves last switches off the lights and locks the {place}.
    最后离开{place}的人应当关灯锁门。
    The {person} in charge keeps a list of those present.
    负责的{person}应当登记到场人员。
Equipment|设备
    The {thing} is checked every {days} days.
    {thing}每{days}日检查一次。
    Damage to the {thing} is reported to the {office} on the same day.
    {thing}损坏的，应当当日报告{office}。
    A {person} may borrow the {thing} for up to {days} days.
    {person}借用{thing}的期限不超过{days}日。
    Repairs are done only by the {office}.
    维修只能由{office}进行。
Safety|安全
    Emergency exits of the {place} stay clear at all times.
    {place}的安全出口应当始终保持畅通。
    A drill takes place every {days} days.
    每{days}日组织一次演练。
    The {person} who notices a danger informs the {office} at once.
    {person}发现险情的，应当立即通知{office}。
    The {thing} is kept out of reach of visitors.
    {thing}应当放置在访客无法接触的地方。
Data protection|信息保护
    Personal data are kept for no longer than {years} years.
    个人信息的保存期限不超过{years}年。
    Only the {office} may read the {paper}.
    只有{office}可以查阅{paper}。
    A {person} may ask for a copy of the stored data.
    {person}可以要求提供所存信息的副本。
    Lost copies of the {paper} are reported within {days} days.
    {paper}遗失的，应当在{days}日内报告。
Complaints|投诉
    A complaint is sent to the {office} with the {paper} attached.
    投诉应当附{paper}提交{office}。
    It is answered within {days} days.
    投诉应当在{days}日内答复。
    The {person} may be heard before a decision is made.
    作出决定前可以听取{person}的意见。
    Decisions are kept on file for {years} years.
    处理决定应当存档{years}年。
Deadlines|期限
    A deadline that ends on a holiday moves to the next working day.
    期限最后一日为节假日的，顺延至下一个工作日。
    The {office} may extend it once by {days} days.
    {office}可以延长一次，延长期为{days}日。
    Requests that arrive late are returned with the {paper}.
    逾期提交的申请连同{paper}一并退回。
    The {person} gives reasons for any delay.
    {person}应当说明延误的理由。
Staff|人员
    At least {count} members of the {office} are on duty.
    {office}值班人员不少于{count}人。
    New staff are trained on the {thing} for {days} days.
    新进人员应当接受{days}日的{thing}培训。
    Duty lists hang in the {place}.
    值班表张贴于{place}。
    A {person} who is ill informs the {office} before work.
    {person}生病的，应当在上班前通知{office}。
Archive|档案
    The {paper} is filed by date.
    {paper}按日期归档。
    After {years} years the {office} decides what to keep.
    满{years}年后由{office}决定去留。
    Readers use the archive in the {place} only.
    查阅档案只能在{place}进行。
    No {thing} may be brought near the files.
    不得携带{thing}靠近档案。
Deliveries|收发货
    Goods for the {place} arrive at the side entrance.
    送往{place}的货物从侧门进入。
    The {person} counts the boxes and signs the {paper}.
    {person}应当清点箱数并在{paper}上签字。
    Wrong deliveries go back within {days} days.
    错送的货物应当在{days}日内退回。
    The {thing} is unpacked by two people.
    {thing}由两人拆封。
Meetings|会议
    The {office} meets every {days} days.
    {office}每{days}日召开一次会议。
    Minutes are ready {count} working days later.
    会议纪要在{count}个工作日内完成。
    A {person} may add a point to the agenda.
    {person}可以提出议题。
    Meetings in the {place} end before eight in the evening.
    在{place}举行的会议应当在晚上八点前结束。
Final provisions|附则
    Earlier rules on the {place} end with this text.
    关于{place}的原有规定同时废止。
    Changes need the consent of the {office}.
    修改本规定应当经{office}同意。
    If one rule is void, the others stay in force.
    部分条款无效的，不影响其他条款的效力。
    The {paper} is part of this text.
    {paper}是本规定的组成部分。
"""
SLOTS: dict[str, tuple[Pair, ...]] = {
    "person": (
        ("member", "会员"), ("visitor", "访客"), ("tenant", "租户"), ("supplier", "供应商"),
        ("employee", "员工"), ("student", "学生"), ("driver", "司机"), ("guest", "客人"),
    ),
    "place": (
        ("reading room", "阅览室"), ("workshop", "工坊"), ("main hall", "大厅"),
        ("storage yard", "堆场"), ("laboratory", "实验室"), ("car park", "停车场"),
        ("kitchen", "厨房"), ("training room", "培训室"), ("north wing", "北楼"),
    ),
    "office": (
        ("front office", "前台"), ("records office", "档案室"), ("finance team", "财务部"),
        ("safety officer", "安全员"), ("board", "理事会"), ("service desk", "服务台"),
    ),
    "thing": (
        ("projector", "投影仪"), ("fork lift", "叉车"), ("ladder", "梯子"), ("key card", "门卡"),
        ("camera", "相机"), ("first-aid kit", "急救箱"), ("water pump", "水泵"),
    ),
    "paper": (
        ("receipt", "收据"), ("entry form", "登记表"), ("delivery note", "送货单"),
        ("annex", "附件"), ("inspection report", "检查报告"), ("licence", "许可证"),
    ),
}  # fmt: skip
# Kind of value, then statement and question, in English and below in Chinese.
_FACTS = """
number|The late fee is {v} dollars a month.|What is the late fee in dollars a month?
    滞纳金为每月{v}元。|滞纳金每月多少元？
number|The deposit for the main hall is {v} dollars.|What is the deposit for the main hall?
    大厅押金为{v}元。|大厅押金是多少元？
number|The emergency line has the extension {v}.|Which extension has the emergency line?
    紧急电话的分机号为{v}。|紧急电话的分机号是多少？
number|A parcel may weigh at most {v} kilograms.|How heavy may a parcel be at most?
    包裹重量不得超过{v}千克。|包裹最多可以多少千克？
number|The archive opens with the code {v}.|Which code opens the archive?
    档案柜的开启密码为{v}。|档案柜的开启密码是多少？
number|The notice period is {v} days.|How long is the notice period in days?
    通知期限为{v}日。|通知期限是多少日？
number|The storage yard holds {v} pallets.|How many pallets does the storage yard hold?
    堆场可存放{v}个托盘。|堆场可存放多少个托盘？
number|The insurance covers {v} dollars a case.|How many dollars a case does the insurance cover?
    保险每案赔付{v}元。|保险每案赔付多少元？
name|The records officer is {n}.|Who is the records officer?
    档案负责人是{n}。|档案负责人是谁？
name|Keys are handed out by {n}.|Who hands out the keys?
    钥匙由{n}发放。|钥匙由谁发放？
name|The fire warden of the north wing is {n}.|Who is the fire warden of the north wing?
    北楼消防负责人是{n}。|北楼消防负责人是谁？
name|The chair of the board is {n}.|Who is the chair of the board?
    理事会主席是{n}。|理事会主席是谁？
date|The annual inspection falls on {d}.|When is the annual inspection?
    年度检查定于{d}进行。|年度检查在哪一天？
date|The summer break starts on {d}.|When does the summer break start?
    夏季停用自{d}开始。|夏季停用从哪一天开始？
date|The founding day is kept on {d}.|On which day is the founding day kept?
    成立纪念日为{d}。|成立纪念日是哪一天？
date|Applications close on {d}.|When do applications close?
    申请截止日期为{d}。|申请截止日期是哪一天？
"""
ORGANISATIONS: tuple[Pair, ...] = (
    ("Riverside Library", "河畔图书馆"), ("Green Hill School", "青山学校"),
    ("Harbour Workshop", "港湾工坊"), ("North Star Museum", "北辰博物馆"),
    ("Oak Street Clinic", "橡树街诊所"), ("Sunrise Housing Cooperative", "朝阳住房合作社"),
    ("Valley Sports Club", "山谷体育会"), ("Old Mill Theatre", "老磨坊剧院"),
    ("Lakeside Laboratory", "湖滨实验中心"), ("Central Warehouse", "中心仓库"),
)  # fmt: skip
KINDS: tuple[Pair, ...] = (
    ("House Rules", "管理规定"), ("Service Agreement", "服务协议"), ("Charter", "章程"),
    ("Operating Manual", "运行手册"), ("Terms of Use", "使用条款"),
)  # fmt: skip


def topics() -> list[tuple[Pair, list[Pair]]]:
    """Return section topics with their clause templates, each in both languages."""
    found: list[tuple[Pair, list[Pair]]] = []
    lines = iter(_CLAUSES.strip().splitlines())
    for row in lines:
        if row.startswith(" "):
            found[-1][1].append((row.strip(), next(lines).strip()))
        else:
            english, chinese = row.split("|")
            found.append(((english, chinese), []))
    return found


def fact_templates() -> list[tuple[Pair, Pair, str]]:
    """Return facts to plant: (statement, question, kind of value)."""
    lines = _FACTS.strip().splitlines()
    facts = []
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        kind, statement, question = first.split("|")
        statement_zh, question_zh = second.strip().split("|")
        facts.append(((statement, statement_zh), (question, question_zh), kind))
    return facts


def fill_clause(template: str, index: int, rng: Random) -> str:
    """Fill the slots of a clause; `index` is 0 for English and 1 for Chinese."""
    slots: dict[str, str | int] = {name: rng.choice(pool)[index] for name, pool in SLOTS.items()}
    slots |= {"days": rng.randint(2, 60), "years": rng.randint(2, 15), "count": rng.randint(2, 9)}
    text = template.format(**slots)
    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)
    return text[:1].upper() + text[1:]
