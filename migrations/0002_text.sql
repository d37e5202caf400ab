-- Text functions that stored data depends on: generated columns and indexes hold their results, so
-- a change to one of them is a migration that recomputes what it touched.

SELECT set_config('search_path', sag.search_path(), TRUE);

-- Case and character classes must not depend on the locale that somebody's database happens to
-- have: under C, lower('É') is 'É' and \w knows ASCII only.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 170000 THEN
        CREATE COLLATION sag.unicode (PROVIDER = builtin, LOCALE = 'C.UTF-8');
    ELSE
        BEGIN
            CREATE COLLATION sag.unicode (PROVIDER = icu, LOCALE = 'und');
        EXCEPTION WHEN feature_not_supported THEN
            -- A server built without ICU has the operating system's.
            CREATE COLLATION sag.unicode (PROVIDER = libc, LOCALE = 'C.UTF-8');
        END;
    END IF;
END
$$;
COMMENT ON COLLATION sag.unicode IS
'Case mapping and character classes of Unicode, whatever the locale of the database.';

CREATE FUNCTION sag.fold_text(content text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
BEGIN
    -- Invisible characters go without leaving a gap; marks of Indic and South-East Asian scripts
    -- belong to their word although no character class says so; + and # do after a letter (C++).
    RETURN btrim(regexp_replace(
        regexp_replace(
            lower(normalize(content, NFKC) COLLATE sag.unicode),
            '[\u00AD\u200B-\u200F\u202A-\u202E\u2060-\u2064\u2066-\u2069\uFEFF]', '', 'g'
        ),
        '([^\w+#\u0300-\u036F\u0483-\u0489\u0591-\u05C7\u0610-\u061A\u064B-\u065F\u0670'
        || '\u06D6-\u06ED\u0900-\u0EFF\u1000-\u109F\u1780-\u17FF]|(?<![\w+#])[+#])+', ' ', 'g'
    ));
END
$$;
COMMENT ON FUNCTION sag.fold_text(text) IS
'Text as names are compared: NFKC, lower case, everything that is no part of a word as one space.';

CREATE FUNCTION sag.normalize_entity(name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
    folded text;
BEGIN
    folded := sag.fold_text(regexp_replace(
        btrim(name), '[''’](s|S)?[[:space:][:punct:]]*$', ''
    ));
    -- "The" alone and "A 1" would lose what makes them a name.
    folded := regexp_replace(folded, '^(the|a|an) (?=\S\S)', '');
    -- A name of symbols alone ("!!!") is still a name.
    IF folded = '' THEN
        folded := btrim(regexp_replace(
            lower(normalize(name, NFKC) COLLATE sag.unicode),
            '[\s\u00AD\u200B-\u200F\u202A-\u202E\u2060-\u2064\u2066-\u2069\uFEFF]+', ' ', 'g'
        ));
    END IF;
    RETURN folded;
END
$$;
COMMENT ON FUNCTION sag.normalize_entity(text) IS
'The identity of an entity: its name folded, without leading article and trailing possessive. '
'Used when documents are merged, when a question is linked and for aliases.';

CREATE FUNCTION sag.cjk_characters() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '\u1100-\u11FF\u3005-\u3007\u3040-\u30FF\u3131-\u318E\u31F0-\u31FF'
|| '\u3400-\u4DBF\u4E00-\u9FFF\uAC00-\uD7AF\uF900-\uFAFF\U00020000-\U0003FFFF';
COMMENT ON FUNCTION sag.cjk_characters() IS
'Han, kana and Hangul, as the inside of a bracket expression.';

CREATE FUNCTION sag.split_cjk(content text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
    cjk constant text := sag.cjk_characters();
    pairs constant text := '([' || cjk || '])([' || cjk || '])|[' || cjk || ']|[^' || cjk || ']+';
BEGIN
    IF content !~ ('[' || cjk || ']') THEN
        RETURN content;
    END IF;
    -- PostgreSQL's parser takes a run of these scripts as one word. Its pairs from every even and
    -- from every odd place make its overlapping bigrams; a character that stands alone stays.
    RETURN concat_ws(
        ' ',
        regexp_replace(
            regexp_replace(content, '[' || cjk || ']{2,}', ' ', 'g'),
            '([' || cjk || '])', ' \1 ', 'g'
        ),
        regexp_replace(content, pairs, '\1\2 ', 'g'),
        regexp_replace(
            regexp_replace(content, '(^|[^' || cjk || '])[' || cjk || ']', '\1 ', 'g'),
            pairs, '\1\2 ', 'g'
        )
    );
END
$$;
COMMENT ON FUNCTION sag.split_cjk(text) IS
'Text with runs of Chinese, Japanese and Korean characters as overlapping bigrams.';

CREATE FUNCTION sag.text_vector(configuration regconfig, content text) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
BEGIN
    -- Hyphens and slashes part their words: PostgreSQL's parser would read GPT-4 as the number -4
    -- and a/b as a path, and neither is found by its parts.
    RETURN to_tsvector(configuration, sag.split_cjk(translate(
        lower(normalize(content, NFKC) COLLATE sag.unicode),
        '-/_‐‑–—', '       '
    )));
END
$$;
COMMENT ON FUNCTION sag.text_vector(regconfig, text) IS
'The tsvector of a text in any language, under a text search configuration.';
