CREATE OR REPLACE FUNCTION sag.fold_tokens(content text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
    cjk constant text := '[' || sag.cjk_characters() || ']';
BEGIN
    -- The unit separator marks a token that the next one follows without a space.
    RETURN string_to_array(regexp_replace(
        regexp_replace(sag.fold_text(content), '(' || cjk || ')(?=\S)', E'\\1\x1F ', 'g'),
        '([^\s\x1F])(?=' || cjk || ')', E'\\1\x1F ', 'g'
    ), ' ');
END
$$;
COMMENT ON FUNCTION sag.fold_tokens(text) IS
'The words of a folded text; each Chinese, Japanese or Korean character is one, and a token that '
'is joined to its successor ends with the unit separator.';
