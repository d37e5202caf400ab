"""Chinese entities by jieba's part-of-speech tags.

jieba's dictionary tags many common nouns as names, and takes unknown names apart. So its tags are
checked against surnames and lists of what is no name, and a name is joined with the noun that
says what it is: 启明 + 科技, 蓝湖 + 数据 + 公司, 天宫 + 项目.
"""

import contextlib
import importlib.util
import logging
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import platformdirs

from sag_pg.errors import ModelError
from sag_pg.models.rule_extraction import (
    Mention,
    date_mentions,
    quoted_mentions,
    rule_mentions,
)

INSTALL_HINT = "pip install 'sag-pg[local]'"

_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]+")
# Latin words in Chinese text are names or terms, however they are written.
_LATIN_RUN = re.compile(
    r"[A-Za-zÀ-ɏ](?:[A-Za-zÀ-ɏ0-9'’_+#-]|[.&](?=[A-Za-zÀ-ɏ0-9]))*"
    r"(?:[ \u00a0](?:[A-Za-zÀ-ɏ0-9'’_+#-]|[.&](?=[A-Za-zÀ-ɏ0-9]))+)*"
)
# A longer run is a sentence rather than a name.
_LONGEST_LATIN_NAME = 4

_SUFFIXES = {
    suffix: kind
    for kind, suffixes in {
        "organization": """
            公司 有限公司 股份公司 集团 科技 银行 大学 学院 研究院 研究所 研究中心 实验室 医院 基金
            基金会 出版社 协会 学会 委员会 工作室 杂志社 报社 俱乐部 资本 乐队 乐团 剧团 中学 小学
            博物馆 图书馆 电视台 交易所 事务所 联盟 工厂 软件 电子 航运 船厂 造船厂
        """,
        "product": """
            项目 平台 系统 操作系统 计划 工程 芯片 引擎 模型 框架 数据库 机器人 卫星 飞船
        """,
        "location": "大桥 水库 机场 车站 公园 广场 山脉 群岛",
    }.items()
    for suffix in suffixes.split()
}
# After a place or a person these say too little: 美国 公司, 北京 项目.
_BARE_SUFFIXES = frozenset({"公司", "集团", "项目", "平台", "系统", "计划", "工程", "工厂"})
_COMMON_PLACE_COUNT = 1000

# A word this rare in jieba's corpus, in front of such a noun, is a name whatever its tag says:
# 启明 stands there as a verb with 25, against 2045 of 收购.
_RARE_COUNT = 200
_FILLER_FLAGS = frozenset({"n", "vn", "b", "j", "nz", "l", "an"})
_RARE_FLAGS = frozenset({"n", "vn", "b", "j", "nz", "an", "v", "a", "t", "z", "ng", "x"})
_MOST_FILLERS = 3

_PERSON_FLAGS = frozenset({"nr", "nrt", "nrfg"})
_SURNAMES = frozenset(
    "王李张刘陈杨赵吴周徐孙马朱胡郭何林罗郑梁宋谢唐许邓冯韩曹曾彭萧蔡潘田董袁余叶蒋杜苏魏吕丁任"
    "卢姚沈钟姜崔谭陆范汪廖石金韦贾夏付方邹熊白孟秦邱侯江尹薛闫段雷龙黎史陶贺毛郝顾龚邵万覃武钱"
    "戴严莫孔向常汤康易乔文华齐温葛洪柳岳牛俞章鲁倪殷翁柯傅欧阮季司黄高梅柏庄于程裴屠诸霍"
)
# What stands before or after a name of two characters and is taken for a part of it. Some such
# names came into jieba's dictionary, where they are as good as unheard of.
_BEFORE_NAME = frozenset("由与和在是被从对将把及以")
_AFTER_NAME = frozenset("后也曾将在于与并都则就又还已从是被把让向等任")
_MADE_UP_FREQUENCY = 10

# An unknown name that ends so is a place, though jieba takes it for a person.
_PLACE_ENDINGS = frozenset("省市县区州镇乡村屯港岛屿湾")

# Common words that jieba's dictionary tags as persons or places.
_NO_PERSONS = frozenset(
    """
    武功 文明 王朝 陆军 雷达 武林 胡同 顾问 王爷 王公 白雪 文武 石英 金殿 顾客 胡子 王府 叶子
    谢谢 白领 康复 范畴 周转 陈述 马匹 林立 王子 白宫 陈列 许可 杜绝 白莲 石狮 马来 史诗 胡闹
    马背 乔木 毛巾 张开 金石 周密 马夫 陈设 石林 白发 金黄 林子 林木 杨柳 胡涂 石柱 杜鹃 张贴
    周旋 白云 田园 孔雀 王宫 龙王 朱砂 史实 张嘴 张口 田野 熊掌 李子 雷声 钱财 万世 白银 卢布
    陈旧 严正 孔道 金光 顾忌 龙宫 胡椒 张罗 徐徐 金山 熊猫 钟声 胡人 陶醉 汪洋 任凭 张扬 周全
    毛发 白昼 沈思 罗汉 王侯 王道 雷霆 张望 易经 许诺 白痴 王妃 王后 史前 马鞭 王权 孙女 马鞍
    马赛 石阶 唐诗 马刀 周详 雷雨 苏醒 白玉 金秋 孔庙 马虎 罗盘 王族 钟楼 钱粮 毛驴 陶冶 文雅
    方正 龙凤 丁香 高峰 高潮 齐全 齐声 洪水 江湖 华丽 温柔 温和 常规 常见 向来 司机 司令 章程
    黄昏 黄金 程序 程度 高度 高级 高大 何等 何时 易于 万分 莫非 康乐 安静 白天 金融 史料 文人
    杜鹃花 胡萝卜 金字塔 老太太 贡献者 莫斯科 石家庄 马其顿
    """.split()  # noqa: SIM905
)
_NO_PLACES = frozenset(
    """
    城市 东西 平原 外国 爱国 南北 英雄 朝廷 太阳 哥哥 海洋 自治州 自治县 湖泊 大桥 高原 上市 建国
    美丽 山区 江湖 大街 王国 开国 共和国 城镇 加盟 大都 京城 阿哥 庆典 南路 深度 山脉 治安 新鲜
    古城 海峡 河口 冰川 长度 山水 长大 莫非 普及 商城 古典 阴阳 山坡 河谷 上马 太平 福利 日志
    云集 青春 神圣 桥头堡 中路 新建 西门 法西斯 河水 中断 山洞 都城 关联 海湾 上半场 湖水 广义
    大圣 江水 南门 新城 海关 大洋 山峰 内城 石桥 中密度 北门 上台 山寨 西洋 契约 二哥 白马 入口
    路桥 广布 古都 三角洲 山口 千古 城堡 中道 伦理 泉水 城垣 中和 天黑 法典 四中 三中 池塘 天桥
    密封 安宁 上门 黄沙 海滨 立马 莫大 海滩 西路 牡丹 西瓜 贵宾 东路 嘉宾 屯田 北路 山林 山川
    北风 赞美 喜庆 北流 台地 入川 大门口 登极 上路 礼拜 庙里 兴旺 山羊 远洋 井口 山门 正南 深谷
    朝野 台风 山岭 白嫩 余脉 象牙 深水 河湾 河里 上铺 入门 深渊 河畔 如林 上岗 夕阳 河沟 远古
    永固 港湾 新春 绕城 苏打 台站 长寿 波及 来京 绵羊 旧城 江底 山庄 安顿 广度 三鲜 江道 国家
    """.split()  # noqa: SIM905
)
_NO_ORGANIZATIONS = frozenset(
    """
    国家机关 国际化 音乐会 社会科学 天文学 联合会 交易所 法院 商学院 中南部 商业银行 党政军 军事法院
    海军陆战队 高级中学 中西部 音乐厅 美术馆 伦理学 四合院 联合体 卫生院 中医药 统计学 施工队
    党政机关 大中学校 海洋生物 加工厂 古典文学 儿童文学 最大化 民族学 人文科学 法学院 信息中心
    通讯社 解放区 党组织 超级大国 黑社会 交易会 美国公司 中国公司
    """.split()  # noqa: SIM905
)


class _Word(NamedTuple):
    text: str
    flag: str
    start: int
    frequency: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def is_installed() -> bool:
    """Whether jieba is there. Does not import it."""
    return importlib.util.find_spec("jieba") is not None


class ChineseEngine:
    """Finds entities in Chinese text. The dictionary is loaded at the first text.

    Threads may share one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tagger: Any = None

    def mentions(self, texts: Sequence[str]) -> list[list[Mention]]:
        """Find the entities of texts.

        Args:
            texts: Chinese, with Latin words among it.

        Returns:
            The mentions of each text, in the order of the text. They may overlap.

        Raises:
            ModelError: If jieba cannot be loaded.
        """
        if not texts:
            return []
        with self._lock:
            if self._tagger is None:
                self._tagger = _load()
        return [self._mentions(text) for text in texts]

    def _mentions(self, text: str) -> list[Mention]:
        dates = list(date_mentions(text))
        quoted = list(quoted_mentions(text))
        # A title is one name, whatever its words are by themselves.
        names = [
            name
            for name in _names(text, self._words(text))
            if not any(span.start <= name.start < span.end for span in (*dates, *quoted))
        ]
        found = [*dates, *quoted, *_latin_mentions(text), *names]
        return sorted(found, key=lambda mention: (mention.start, -mention.end))

    def _words(self, text: str) -> list[_Word]:
        counts = self._tagger.tokenizer.FREQ
        words: list[_Word] = []
        for run in _HAN.finditer(text):
            start = run.start()
            for pair in self._tagger.cut(run.group()):
                word = _Word(pair.word, pair.flag, start, counts.get(pair.word) or 0)
                words.extend(_without_particles(word))
                start = word.end
        return words


def _without_particles(word: _Word) -> Iterator[_Word]:
    """Split a particle off a name that jieba made up: 由 + 溪石, 李明 + 后 (of 后来)."""
    name, start = word.text, word.start
    if len(name) != 3 or word.flag not in _PERSON_FLAGS or word.frequency >= _MADE_UP_FREQUENCY:
        yield word
    elif name[0] in _BEFORE_NAME:
        yield _Word(name[0], "p", start, 0)
        yield _Word(name[1:], word.flag, start + 1, 0)
    elif name[-1] in _AFTER_NAME:
        yield _Word(name[:-1], word.flag, start, 0)
        yield _Word(name[-1], "p", start + 2, 0)
    else:
        yield word


def _load() -> Any:
    try:
        # jieba imports the deprecated pkg_resources, and its patterns have invalid escapes.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import jieba
            import jieba.posseg
    except ImportError as error:
        raise ModelError(f"jieba could not be loaded: {error}", INSTALL_HINT) from error
    jieba.setLogLevel(logging.CRITICAL)
    tokenizer = jieba.Tokenizer()
    # jieba unmarshals its cache, so it must not lie where others can write, as in /tmp.
    cache = platformdirs.user_cache_path("sag-pg") / "jieba"
    # Where it cannot write, jieba builds its dictionary anew each time, in a second.
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    tokenizer.tmp_dir = str(cache)
    tagger = jieba.posseg.POSTokenizer(tokenizer)
    tagger.initialize()
    return tagger


def _latin_mentions(text: str) -> Iterator[Mention]:
    for run in _LATIN_RUN.finditer(text):
        if len(run.group().split()) <= _LONGEST_LATIN_NAME:
            yield Mention(run.start(), run.end(), run.group(), "tag")
        else:
            for mention in rule_mentions(run.group()):
                yield mention.shifted(run.start())


def _names(text: str, words: Sequence[_Word]) -> Iterator[Mention]:
    position = 0
    while position < len(words):
        word = words[position]
        foreign = _foreign_name_end(text, words, position)
        if foreign > position:
            end = words[foreign].end
            yield Mention(word.start, end, text[word.start : end], "person")
            position = foreign + 1
            continue
        compound = _compound_end(words, position)
        if compound > position:
            last = words[compound]
            name = text[word.start : last.end]
            yield Mention(word.start, last.end, name, _SUFFIXES[last.text])
            position = compound + 1
            continue
        kind = _name_type(word)
        # After a digit stands a unit: 3.1 亿克朗.
        if kind is not None and not text[max(word.start - 1, 0)].isdecimal():
            yield Mention(word.start, word.end, word.text, kind)
        position += 1


def _name_type(word: _Word) -> str | None:
    """Return the entity type of a word that is a name by itself; None for all others."""
    if len(word.text) < 2:
        return None
    if word.flag in _PERSON_FLAGS:
        if word.frequency == 0 and word.text[-1] in _PLACE_ENDINGS:
            return "location"
        return "person" if _is_person(word) else None
    if word.flag == "ns":
        return None if word.text in _NO_PLACES else "location"
    if word.flag == "nt":
        return None if word.text in _NO_ORGANIZATIONS else "organization"
    if word.flag == "nz":
        # Of the short ones, only peoples, languages and religions are names more often than not.
        return "tag" if len(word.text) > 2 or word.text[-1] in "族语教" else None
    return None


def _is_person(word: _Word) -> bool:
    if word.text in _NO_PERSONS:
        return False
    if word.frequency == 0:
        return len(word.text) <= 4
    if word.flag == "nrt":
        return len(word.text) > 2
    return word.text[0] in _SURNAMES and len(word.text) <= 4


def _foreign_name_end(text: str, words: Sequence[_Word], first: int) -> int:
    """Return the index of the last word of a name such as 阿尔伯特·爱因斯坦, else `first`."""
    last = first
    while (
        last + 1 < len(words)
        and words[last + 1].start == words[last].end + 1
        and text[words[last].end] in "·•・‧"
    ):
        last += 1
    return last


def _compound_end(words: Sequence[_Word], first: int) -> int:
    """Return the index of the noun that closes a name such as 启明科技, else `first`."""
    word = words[first]
    named = _name_type(word) is not None
    rare = len(word.text) > 1 and word.frequency < _RARE_COUNT and word.flag in _RARE_FLAGS
    if not (named or rare) or word.text in _SUFFIXES:
        return first
    closing = first
    fillers = 0
    position = first + 1
    while position < len(words) and words[position].start == words[position - 1].end:
        following = words[position]
        if following.text in _SUFFIXES:
            closing = position
        elif following.flag in _FILLER_FLAGS and fillers < _MOST_FILLERS:
            fillers += 1
        elif position == first + 1 and named and _name_type(following) is not None:
            pass
        else:
            break
        position += 1
    if closing == first:
        return first
    kind = _SUFFIXES[words[closing].text]
    bare = closing == first + 1 and words[closing].text in _BARE_SUFFIXES
    if bare and word.flag == "ns" and word.frequency >= _COMMON_PLACE_COUNT:
        return first
    # 天宫 项目 经理: the noun only qualifies the next one.
    if kind == "product" and position > closing + 1:
        return first
    return closing
