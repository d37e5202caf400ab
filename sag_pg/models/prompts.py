"""The prompts, which are files of their own beside this module.

A file is named by what it is for, its version and its language: `extraction-1.en.txt`. A change
of the wording is a new version, so that what was made with the old one can be told apart.
"""

import re
from functools import cache
from importlib import resources
from typing import Literal

from sag_pg.models.scripts import CJK, main_script

Language = Literal["en", "zh"]

# Of Japanese about half is kana; a Chinese text has a の here and there at most.
_MOST_KANA = 0.1
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_KANA_OR_HANGUL = re.compile(r"[\u3041-\u30fa\u30fd-\u30ff\u1100-\u11ff\u3131-\u318e\uac00-\ud7af]")


def prompt_for(name: str, text: str) -> str:
    """Return a prompt in the language that suits a text.

    Args:
        name: What it is for and its version, such as "extraction-1".
        text: What the model is going to read. For Chinese the prompt is Chinese, for all else
            English; either tells the model to keep to the language of the text.
    """
    return load_prompt(name, language_of(text))


@cache
def load_prompt(name: str, language: Language) -> str:
    """Read a prompt's file.

    Raises:
        FileNotFoundError: There is no prompt of that name.
    """
    file = resources.files("sag_pg.models") / "prompts" / f"{name}.{language}.txt"
    return file.read_text(encoding="utf-8").strip()


def language_of(text: str) -> Language:
    """Tell Chinese ("zh") from all other languages ("en"), by the script of the text's start."""
    if main_script(text) != CJK:
        return "en"
    han = len(_HAN.findall(text))
    return "zh" if len(_KANA_OR_HANGUL.findall(text)) <= _MOST_KANA * han else "en"
