"""Countries: capital, continent and currency in English and Chinese.

A dash marks a fact that is disputed, shared by two continents or about to change; no question is
asked about it. The last column is how well known the capital is: e(asy), m(edium), h(ard).
"""

from functools import cache
from typing import NamedTuple

from hf_glm_curriculum.data.demo.draft import Phrase

_LEVELS = {"e": "easy", "m": "medium", "h": "hard"}
_CONTINENTS = {
    "As": ("Asia", "亚洲"),
    "Eu": ("Europe", "欧洲"),
    "Af": ("Africa", "非洲"),
    "NA": ("North America", "北美洲"),
    "SA": ("South America", "南美洲"),
    "Oc": ("Oceania", "大洋洲"),
}
_TABLE = """
China|中国|Beijing|北京|As|yuan|人民币|e
Japan|日本|Tokyo|东京|As|yen|日元|e
South Korea|韩国|Seoul|首尔|As|won|韩元|e
North Korea|朝鲜|Pyongyang|平壤|As|-|-|m
Mongolia|蒙古国|Ulaanbaatar|乌兰巴托|As|tögrög|图格里克|h
Vietnam|越南|Hanoi|河内|As|dong|越南盾|m
Thailand|泰国|Bangkok|曼谷|As|baht|泰铢|e
Laos|老挝|Vientiane|万象|As|kip|基普|h
Cambodia|柬埔寨|Phnom Penh|金边|As|riel|瑞尔|m
Myanmar|缅甸|Naypyidaw|内比都|As|kyat|缅元|h
Malaysia|马来西亚|Kuala Lumpur|吉隆坡|As|ringgit|林吉特|m
Philippines|菲律宾|Manila|马尼拉|As|Philippine peso|菲律宾比索|m
Brunei|文莱|Bandar Seri Begawan|斯里巴加湾市|As|-|-|h
India|印度|New Delhi|新德里|As|Indian rupee|印度卢比|e
Pakistan|巴基斯坦|Islamabad|伊斯兰堡|As|Pakistani rupee|巴基斯坦卢比|m
Bangladesh|孟加拉国|Dhaka|达卡|As|taka|塔卡|m
Nepal|尼泊尔|Kathmandu|加德满都|As|Nepalese rupee|尼泊尔卢比|m
Bhutan|不丹|Thimphu|廷布|As|ngultrum|努尔特鲁姆|h
Maldives|马尔代夫|Malé|马累|As|rufiyaa|拉菲亚|m
Afghanistan|阿富汗|Kabul|喀布尔|As|-|-|m
Iran|伊朗|Tehran|德黑兰|As|-|-|m
Iraq|伊拉克|Baghdad|巴格达|As|Iraqi dinar|伊拉克第纳尔|m
Saudi Arabia|沙特阿拉伯|Riyadh|利雅得|As|riyal|里亚尔|m
Jordan|约旦|Amman|安曼|As|Jordanian dinar|约旦第纳尔|m
Lebanon|黎巴嫩|Beirut|贝鲁特|As|Lebanese pound|黎巴嫩镑|m
Syria|叙利亚|Damascus|大马士革|As|-|-|m
Qatar|卡塔尔|Doha|多哈|As|-|-|m
Oman|阿曼|Muscat|马斯喀特|As|Omani rial|阿曼里亚尔|h
Bahrain|巴林|Manama|麦纳麦|As|Bahraini dinar|巴林第纳尔|h
United Arab Emirates|阿联酋|Abu Dhabi|阿布扎比|As|dirham|迪拉姆|m
Uzbekistan|乌兹别克斯坦|Tashkent|塔什干|As|-|-|h
Turkmenistan|土库曼斯坦|Ashgabat|阿什哈巴德|As|-|-|h
Kyrgyzstan|吉尔吉斯斯坦|Bishkek|比什凯克|As|-|-|h
Tajikistan|塔吉克斯坦|Dushanbe|杜尚别|As|-|-|h
Turkey|土耳其|Ankara|安卡拉|-|lira|里拉|m
Russia|俄罗斯|Moscow|莫斯科|-|rouble|卢布|e
Georgia|格鲁吉亚|Tbilisi|第比利斯|-|lari|拉里|h
Armenia|亚美尼亚|Yerevan|埃里温|-|dram|德拉姆|h
Azerbaijan|阿塞拜疆|Baku|巴库|-|manat|马纳特|h
France|法国|Paris|巴黎|Eu|euro|欧元|e
Germany|德国|Berlin|柏林|Eu|euro|欧元|e
Italy|意大利|Rome|罗马|Eu|euro|欧元|e
Spain|西班牙|Madrid|马德里|Eu|euro|欧元|e
Portugal|葡萄牙|Lisbon|里斯本|Eu|euro|欧元|e
United Kingdom|英国|London|伦敦|Eu|pound sterling|英镑|e
Ireland|爱尔兰|Dublin|都柏林|Eu|euro|欧元|e
Belgium|比利时|Brussels|布鲁塞尔|Eu|euro|欧元|e
Netherlands|荷兰|Amsterdam|阿姆斯特丹|Eu|euro|欧元|e
Luxembourg|卢森堡|Luxembourg City|卢森堡市|Eu|euro|欧元|m
Switzerland|瑞士|Bern|伯尔尼|Eu|Swiss franc|瑞士法郎|m
Austria|奥地利|Vienna|维也纳|Eu|euro|欧元|e
Denmark|丹麦|Copenhagen|哥本哈根|Eu|Danish krone|丹麦克朗|e
Norway|挪威|Oslo|奥斯陆|Eu|Norwegian krone|挪威克朗|e
Sweden|瑞典|Stockholm|斯德哥尔摩|Eu|Swedish krona|瑞典克朗|e
Finland|芬兰|Helsinki|赫尔辛基|Eu|euro|欧元|e
Iceland|冰岛|Reykjavik|雷克雅未克|Eu|Icelandic króna|冰岛克朗|m
Poland|波兰|Warsaw|华沙|Eu|zloty|兹罗提|e
Czech Republic|捷克|Prague|布拉格|Eu|Czech koruna|捷克克朗|e
Slovakia|斯洛伐克|Bratislava|布拉迪斯拉发|Eu|euro|欧元|m
Hungary|匈牙利|Budapest|布达佩斯|Eu|forint|福林|e
Romania|罗马尼亚|Bucharest|布加勒斯特|Eu|leu|列伊|m
Bulgaria|保加利亚|Sofia|索非亚|Eu|-|-|m
Greece|希腊|Athens|雅典|Eu|euro|欧元|e
Serbia|塞尔维亚|Belgrade|贝尔格莱德|Eu|Serbian dinar|塞尔维亚第纳尔|m
Croatia|克罗地亚|Zagreb|萨格勒布|Eu|euro|欧元|m
Slovenia|斯洛文尼亚|Ljubljana|卢布尔雅那|Eu|euro|欧元|m
Bosnia and Herzegovina|波黑|Sarajevo|萨拉热窝|Eu|-|-|m
North Macedonia|北马其顿|Skopje|斯科普里|Eu|denar|代纳尔|h
Albania|阿尔巴尼亚|Tirana|地拉那|Eu|lek|列克|m
Montenegro|黑山|Podgorica|波德戈里察|Eu|euro|欧元|h
Ukraine|乌克兰|Kyiv|基辅|Eu|hryvnia|格里夫纳|m
Belarus|白俄罗斯|Minsk|明斯克|Eu|-|-|m
Moldova|摩尔多瓦|Chișinău|基希讷乌|Eu|leu|列伊|h
Lithuania|立陶宛|Vilnius|维尔纽斯|Eu|euro|欧元|m
Latvia|拉脱维亚|Riga|里加|Eu|euro|欧元|m
Estonia|爱沙尼亚|Tallinn|塔林|Eu|euro|欧元|m
Malta|马耳他|Valletta|瓦莱塔|Eu|euro|欧元|m
Andorra|安道尔|Andorra la Vella|安道尔城|Eu|euro|欧元|h
Liechtenstein|列支敦士登|Vaduz|瓦杜兹|Eu|Swiss franc|瑞士法郎|h
Egypt|埃及|Cairo|开罗|Af|Egyptian pound|埃及镑|e
Libya|利比亚|Tripoli|的黎波里|Af|Libyan dinar|利比亚第纳尔|m
Tunisia|突尼斯|Tunis|突尼斯市|Af|Tunisian dinar|突尼斯第纳尔|m
Algeria|阿尔及利亚|Algiers|阿尔及尔|Af|Algerian dinar|阿尔及利亚第纳尔|m
Morocco|摩洛哥|Rabat|拉巴特|Af|Moroccan dirham|摩洛哥迪拉姆|m
Sudan|苏丹|Khartoum|喀土穆|Af|-|-|m
South Sudan|南苏丹|Juba|朱巴|Af|-|-|h
Ethiopia|埃塞俄比亚|Addis Ababa|亚的斯亚贝巴|Af|birr|比尔|m
Eritrea|厄立特里亚|Asmara|阿斯马拉|Af|nakfa|纳克法|h
Djibouti|吉布提|Djibouti City|吉布提市|Af|-|-|h
Somalia|索马里|Mogadishu|摩加迪沙|Af|-|-|m
Kenya|肯尼亚|Nairobi|内罗毕|Af|Kenyan shilling|肯尼亚先令|e
Uganda|乌干达|Kampala|坎帕拉|Af|Ugandan shilling|乌干达先令|m
Rwanda|卢旺达|Kigali|基加利|Af|Rwandan franc|卢旺达法郎|m
Tanzania|坦桑尼亚|Dodoma|多多马|Af|Tanzanian shilling|坦桑尼亚先令|h
Zambia|赞比亚|Lusaka|卢萨卡|Af|Zambian kwacha|赞比亚克瓦查|m
Malawi|马拉维|Lilongwe|利隆圭|Af|Malawian kwacha|马拉维克瓦查|h
Mozambique|莫桑比克|Maputo|马普托|Af|metical|梅蒂卡尔|m
Zimbabwe|津巴布韦|Harare|哈拉雷|Af|-|-|m
Botswana|博茨瓦纳|Gaborone|哈博罗内|Af|pula|普拉|h
Namibia|纳米比亚|Windhoek|温得和克|Af|-|-|h
Angola|安哥拉|Luanda|罗安达|Af|kwanza|宽扎|m
Gabon|加蓬|Libreville|利伯维尔|Af|-|-|h
Cameroon|喀麦隆|Yaoundé|雅温得|Af|-|-|m
Chad|乍得|N'Djamena|恩贾梅纳|Af|-|-|h
Niger|尼日尔|Niamey|尼亚美|Af|-|-|h
Nigeria|尼日利亚|Abuja|阿布贾|Af|naira|奈拉|m
Ghana|加纳|Accra|阿克拉|Af|cedi|塞地|m
Togo|多哥|Lomé|洛美|Af|-|-|h
Burkina Faso|布基纳法索|Ouagadougou|瓦加杜古|Af|-|-|h
Mali|马里|Bamako|巴马科|Af|-|-|m
Senegal|塞内加尔|Dakar|达喀尔|Af|-|-|m
Gambia|冈比亚|Banjul|班珠尔|Af|dalasi|达拉西|h
Guinea|几内亚|Conakry|科纳克里|Af|-|-|h
Sierra Leone|塞拉利昂|Freetown|弗里敦|Af|-|-|h
Liberia|利比里亚|Monrovia|蒙罗维亚|Af|-|-|h
Mauritania|毛里塔尼亚|Nouakchott|努瓦克肖特|Af|ouguiya|乌吉亚|h
Cape Verde|佛得角|Praia|普拉亚|Af|-|-|h
Madagascar|马达加斯加|Antananarivo|塔那那利佛|Af|ariary|阿里亚里|h
Mauritius|毛里求斯|Port Louis|路易港|Af|Mauritian rupee|毛里求斯卢比|h
Seychelles|塞舌尔|Victoria|维多利亚|Af|Seychellois rupee|塞舌尔卢比|h
Lesotho|莱索托|Maseru|马塞卢|Af|-|-|h
South Africa|南非|-|-|-|rand|兰特|m
United States|美国|Washington, D.C.|华盛顿|NA|US dollar|美元|e
Canada|加拿大|Ottawa|渥太华|NA|Canadian dollar|加元|e
Mexico|墨西哥|Mexico City|墨西哥城|NA|Mexican peso|墨西哥比索|e
Guatemala|危地马拉|Guatemala City|危地马拉城|NA|quetzal|格查尔|m
Belize|伯利兹|Belmopan|贝尔莫潘|NA|Belize dollar|伯利兹元|h
Honduras|洪都拉斯|Tegucigalpa|特古西加尔巴|NA|lempira|伦皮拉|h
El Salvador|萨尔瓦多|San Salvador|圣萨尔瓦多|NA|-|-|m
Nicaragua|尼加拉瓜|Managua|马那瓜|NA|córdoba|科多巴|h
Costa Rica|哥斯达黎加|San José|圣何塞|NA|colón|科朗|m
Panama|巴拿马|Panama City|巴拿马城|NA|-|-|m
Cuba|古巴|Havana|哈瓦那|NA|Cuban peso|古巴比索|e
Jamaica|牙买加|Kingston|金斯敦|NA|Jamaican dollar|牙买加元|m
Haiti|海地|Port-au-Prince|太子港|NA|gourde|古德|m
Dominican Republic|多米尼加共和国|Santo Domingo|圣多明各|NA|Dominican peso|多米尼加比索|m
Bahamas|巴哈马|Nassau|拿骚|NA|Bahamian dollar|巴哈马元|m
Barbados|巴巴多斯|Bridgetown|布里奇敦|NA|Barbadian dollar|巴巴多斯元|h
Trinidad and Tobago|特立尼达和多巴哥|Port of Spain|西班牙港|NA|-|-|h
Brazil|巴西|Brasília|巴西利亚|SA|real|雷亚尔|e
Argentina|阿根廷|Buenos Aires|布宜诺斯艾利斯|SA|Argentine peso|阿根廷比索|e
Chile|智利|Santiago|圣地亚哥|SA|Chilean peso|智利比索|m
Uruguay|乌拉圭|Montevideo|蒙得维的亚|SA|Uruguayan peso|乌拉圭比索|m
Paraguay|巴拉圭|Asunción|亚松森|SA|guaraní|瓜拉尼|m
Peru|秘鲁|Lima|利马|SA|sol|索尔|e
Ecuador|厄瓜多尔|Quito|基多|SA|US dollar|美元|m
Colombia|哥伦比亚|Bogotá|波哥大|SA|Colombian peso|哥伦比亚比索|m
Venezuela|委内瑞拉|Caracas|加拉加斯|SA|bolívar|玻利瓦尔|m
Guyana|圭亚那|Georgetown|乔治敦|SA|Guyanese dollar|圭亚那元|h
Suriname|苏里南|Paramaribo|帕拉马里博|SA|Surinamese dollar|苏里南元|h
Australia|澳大利亚|Canberra|堪培拉|Oc|Australian dollar|澳元|e
New Zealand|新西兰|Wellington|惠灵顿|Oc|New Zealand dollar|新西兰元|e
Fiji|斐济|Suva|苏瓦|Oc|Fijian dollar|斐济元|m
Papua New Guinea|巴布亚新几内亚|Port Moresby|莫尔兹比港|Oc|kina|基那|h
Samoa|萨摩亚|Apia|阿皮亚|Oc|tala|塔拉|h
Tonga|汤加|Nukuʻalofa|努库阿洛法|Oc|paʻanga|潘加|h
Vanuatu|瓦努阿图|Port Vila|维拉港|Oc|vatu|瓦图|h
Solomon Islands|所罗门群岛|Honiara|霍尼亚拉|Oc|-|-|h
"""


class Country(NamedTuple):
    """One country; a fact that must not be asked about is None."""

    name: tuple[str, str]
    capital: tuple[str, str] | None
    continent: tuple[str, str] | None
    currency: tuple[str, str] | None
    level: str


@cache
def countries() -> tuple[Country, ...]:
    """Read the table of countries."""
    return tuple(_read(row) for row in _TABLE.strip().splitlines())


def _read(row: str) -> Country:
    name, name_zh, capital, capital_zh, continent, currency, currency_zh, level = row.split("|")
    return Country(
        (name, name_zh),
        None if capital == "-" else (capital, capital_zh),
        _CONTINENTS.get(continent),
        None if currency == "-" else (currency, currency_zh),
        _LEVELS[level],
    )


def continents() -> tuple[tuple[str, str], ...]:
    """Return the continents that countries are assigned to."""
    return tuple(_CONTINENTS.values())


def with_article(name: tuple[str, str]) -> Phrase:
    """Put "the" before the English names that take it."""
    takes_article = name[0].startswith(("United", "Czech", "Dominican", "Nether", "Phil", "Mald"))
    takes_article |= name[0] in ("Bahamas", "Gambia", "Solomon Islands", "Seychelles")
    return ("the " + name[0], name[1]) if takes_article else name
