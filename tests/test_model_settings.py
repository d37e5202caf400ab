"""The settings of models behind endpoints, and the key that is none of them."""

import pytest

from sag_pg.errors import ConfigurationError, SagError
from sag_pg.models.budget import Usage
from sag_pg.models.endpoint import Endpoint
from sag_pg.models.load import load_embedding_model, load_extractor
from sag_pg.models.settings import OPENAI_BASE_URL, SETTINGS, ModelSettings, redact_url

KEY = "sk-canary-4711"


def endpoint(settings: ModelSettings, **environ: str) -> Endpoint:
    return Endpoint(settings, "chat", Usage(), environ)


def test_defaults() -> None:
    settings = ModelSettings.from_environment({})
    assert settings == ModelSettings()
    assert settings.base_url == OPENAI_BASE_URL
    assert (settings.model_concurrency, settings.model_timeout) == (8, 60)
    assert settings.model_retries is None
    assert settings.max_tokens is settings.max_requests is settings.embedding_dimensions is None


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_each_setting_comes_from_its_variable_and_its_option(setting) -> None:
    values = {str: "https://models.example/v1", int: "7", float: "7.5"}
    text = "SOME_KEY" if setting.name.endswith("key_env") else values[setting.type]
    assert setting.variable == "SAG_PG_" + setting.option[2:].replace("-", "_").upper()

    from_variable = ModelSettings.from_environment({setting.variable: text})
    assert getattr(from_variable, setting.name) == setting.type(text)
    other = {str: "OTHER" if "url" not in setting.name else "http://other", int: 9, float: 9.5}
    from_option = ModelSettings.from_environment(
        {setting.variable: text}, **{setting.name: other[setting.type]}
    )
    assert getattr(from_option, setting.name) == other[setting.type]
    assert setting.meaning.endswith(".")


def test_general_variable_comes_after_the_own_one() -> None:
    general = {"OPENAI_BASE_URL": "http://general/v1"}
    assert ModelSettings.from_environment(general).base_url == "http://general/v1"
    both = {**general, "SAG_PG_BASE_URL": "http://own/v1"}
    assert ModelSettings.from_environment(both).base_url == "http://own/v1"
    assert ModelSettings.from_environment({**general, "SAG_PG_BASE_URL": ""}).base_url == (
        "http://general/v1"
    )


def test_kinds_of_endpoints_fall_back_to_the_general_one() -> None:
    settings = ModelSettings.from_environment(
        {"SAG_PG_BASE_URL": "http://a/v1/", "SAG_PG_API_KEY_ENV": "KEY_A"},
        embedding_base_url="http://b/v1",
        rerank_api_key_env="KEY_C",
    )
    assert [settings.url_of(kind) for kind in ("chat", "embedding", "rerank")] == [
        "http://a/v1",
        "http://b/v1",
        "http://a/v1",
    ]
    assert [settings.key_variable_of(kind) for kind in ("chat", "embedding", "rerank")] == [
        "KEY_A",
        "KEY_A",
        "KEY_C",
    ]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SAG_PG_MODEL_CONCURRENCY", "many"),
        ("SAG_PG_MODEL_CONCURRENCY", "0"),
        ("SAG_PG_MODEL_TIMEOUT", "nan"),
        ("SAG_PG_MODEL_TIMEOUT", "inf"),
        ("SAG_PG_MODEL_TIMEOUT", "-1"),
        ("SAG_PG_MODEL_RETRIES", "-1"),
        ("SAG_PG_MAX_TOKENS", "1.5"),
        ("SAG_PG_EMBEDDING_DIMENSIONS", "0"),
        ("SAG_PG_CHAT_MODEL", "  "),
        ("SAG_PG_RERANK_MODEL", "model\r\nX-Header: 1"),
        ("SAG_PG_EMBEDDING_MODEL", "model\x1b[2J"),
        ("SAG_PG_BASE_URL", "localhost:8000"),
        ("OPENAI_BASE_URL", "ftp://host/v1"),
        ("SAG_PG_EMBEDDING_BASE_URL", "http://host:port/v1"),
        ("SAG_PG_RERANK_BASE_URL", "http://[::1/v1"),
        ("SAG_PG_API_KEY_ENV", KEY),
    ],
)
def test_bad_value_names_the_variable(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{variable} (is|has) ") as caught:
        ModelSettings.from_environment({variable: value})
    assert caught.value.hint
    assert str(caught.value).isprintable()
    assert KEY not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("load", [load_embedding_model, load_extractor])
def test_name_of_a_model_that_cannot_be_shown_is_refused(load) -> None:
    with pytest.raises(ConfigurationError, match="cannot be shown") as caught:
        load("openai:model\r\nX", ModelSettings(base_url="http://host/v1"))
    assert str(caught.value).isprintable()


def test_bad_option_is_named_as_option() -> None:
    with pytest.raises(ConfigurationError, match=r"^--model-timeout is 'soon'\."):
        ModelSettings.from_environment({"SAG_PG_MODEL_TIMEOUT": "5"}, model_timeout="soon")


def test_password_in_a_url_is_not_shown() -> None:
    url = "https://user:secret@host:8443/v1?token=secret"
    settings = ModelSettings.from_environment({"SAG_PG_BASE_URL": url}, rerank_base_url=url)
    assert settings.base_url == url
    assert settings.shown()["base_url"] == "https://host:8443/v1"
    assert "secret" not in f"{settings} {settings!r} {settings.shown()}"
    assert redact_url(url) == "https://host:8443/v1"
    bad = "https://user:secret@/v1"
    with pytest.raises(ConfigurationError) as caught:
        ModelSettings.from_environment({"SAG_PG_BASE_URL": bad})
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_openai_needs_a_key_and_names_its_variable() -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        endpoint(ModelSettings())
    with pytest.raises(ConfigurationError, match="MY_KEY"):
        endpoint(ModelSettings(api_key_env="MY_KEY"), OPENAI_API_KEY=KEY)
    endpoint(ModelSettings(), OPENAI_API_KEY=KEY)


def test_own_endpoint_needs_no_key() -> None:
    endpoint(ModelSettings(base_url="http://127.0.0.1:11434/v1"))


@pytest.mark.parametrize("spoilt", [KEY + "\nx", f"Bearer {KEY}", KEY + "é", KEY + "\0"])
def test_key_that_cannot_be_sent_is_refused_without_being_shown(spoilt: str) -> None:
    with pytest.raises(SagError, match="OPENAI_API_KEY") as caught:
        endpoint(ModelSettings(), OPENAI_API_KEY=spoilt)
    assert KEY not in f"{caught.value} {caught.value.hint}"


def test_key_is_in_no_text_form() -> None:
    made = endpoint(ModelSettings(), OPENAI_API_KEY=KEY)
    assert KEY not in repr(made)
    assert KEY not in repr(made.settings)
    assert made.url == OPENAI_BASE_URL
