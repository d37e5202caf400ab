CREATE OR REPLACE FUNCTION sag.join_tokens(tokens text[]) RETURNS text
-- STABLE like array_to_string(), else the planner cannot inline it.
LANGUAGE sql STABLE PARALLEL SAFE
RETURN rtrim(replace(array_to_string(tokens, ' '), E'\x1F ', ''), E'\x1F');
COMMENT ON FUNCTION sag.join_tokens(text[]) IS 'The text that sag.fold_tokens() took apart.';
