"""What embedding models want before a question and before a passage."""

from collections.abc import Mapping

BGE_QUESTION_PREFIX = "Represent this sentence for searching relevant passages: "

_BGE_CHINESE = ("为这个句子生成表示以用于检索相关文章：", "")
_BGE_ENGLISH = (BGE_QUESTION_PREFIX, "")
_NO_PREFIX = ("", "")

# fastembed and OpenAI-compatible servers embed questions and passages alike and leave the
# prefixes of these families to the caller. Matched against the start of the model's name, in
# lower case and without its owner ("BAAI/"), which servers leave out; the first that fits counts.
_PREFIXES: Mapping[str, tuple[str, str]] = {
    "bge-small-zh": _BGE_CHINESE,
    "bge-base-zh": _BGE_CHINESE,
    "bge-large-zh": _BGE_CHINESE,
    "bge-m3": _NO_PREFIX,
    "bge-multilingual-": _NO_PREFIX,
    "bge-": _BGE_ENGLISH,
    "mxbai-embed-": _BGE_ENGLISH,
    "snowflake-arctic-embed2": ("query: ", ""),
    "snowflake-arctic-embed-l-v2": ("query: ", ""),
    "snowflake-arctic-embed-m-v2": ("query: ", ""),
    "snowflake-arctic-embed": _BGE_ENGLISH,
    "multilingual-e5-large-instruct": (
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\n"
        "Query: ",
        "",
    ),
    "multilingual-e5-": ("query: ", "passage: "),
    "nomic-embed-text": ("search_query: ", "search_document: "),
    "embeddinggemma": ("task: search result | query: ", "title: none | text: "),
    "qwen3-embedding": (
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\n"
        "Query:",
        "",
    ),
}


def prefixes_of(model: str) -> tuple[str, str]:
    """Find the prefixes of a model.

    Args:
        model: Its name, with or without owner and tag: "BAAI/bge-small-en-v1.5",
            "nomic-embed-text:latest".

    Returns:
        The prefix of questions and the one of passages; two empty strings for a model that is
        not known to want any.
    """
    name = model.lower().rpartition("/")[2]
    return next((both for start, both in _PREFIXES.items() if name.startswith(start)), _NO_PREFIX)
