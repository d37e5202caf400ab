CREATE OR REPLACE FUNCTION sag.lexeme_query(lexeme text) RETURNS tsquery
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ('''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || '''')::tsquery;
COMMENT ON FUNCTION sag.lexeme_query(text) IS
'The tsquery that matches exactly this lexeme, whatever characters it holds.';
