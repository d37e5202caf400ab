"""The prompts: their files, their language, and that they fit what is made of the answers."""

import re
from importlib import resources

import pytest

from sag_pg.models.prompts import language_of, load_prompt, prompt_for

NAMES = ("extraction-1", "question_entities-1", "choice-1")


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_is_there_in_both_languages(name: str) -> None:
    english, chinese = load_prompt(name, "en"), load_prompt(name, "zh")
    # OpenAI's JSON mode wants the word.
    assert "JSON" in english
    assert "JSON" in chinese
    keys = re.findall(r'"(\w+)"[:：]', english)
    assert keys
    assert re.findall(r'"(\w+)"[:：]', chinese) == keys


def test_no_prompt_lacks_its_translation() -> None:
    names = [entry.name for entry in (resources.files("sag_pg.models") / "prompts").iterdir()]
    stems = sorted(name.removesuffix(".txt").rpartition(".")[::2] for name in names)
    assert stems == sorted((name, language) for name in NAMES for language in ("en", "zh"))


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Which town is it?", "en"),
        ("", "en"),
        ("1999", "en"),
        ("收购 Company B 的那家公司的 CTO 后来加入了哪个项目？", "zh"),
        ("她喜欢“鮮の味”这家店的招牌菜，每周都要和同事一起去吃两次。", "zh"),
        ("東京は日本の首都であり、人口が最も多い都市である。", "en"),
        ("서울은 대한민국의 수도이다.", "en"),
        ("Москва — столица России.", "en"),
        ("A film by 李安 about a tiger", "en"),
    ],
)
def test_language_follows_the_script(text: str, language: str) -> None:
    assert language_of(text) == language


def test_prompt_in_the_language_of_the_text() -> None:
    assert prompt_for("choice-1", "这是谁？") == load_prompt("choice-1", "zh")
    assert prompt_for("choice-1", "Who is it?") == load_prompt("choice-1", "en")
