CREATE OR REPLACE FUNCTION sag.describe_mode(
    has_embedding boolean, has_all_embeddings boolean, reasons text[], is_chosen boolean
)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN concat(
    CASE
        WHEN NOT has_embedding THEN 'lexical'
        WHEN NOT has_all_embeddings THEN 'vector and lexical'
        ELSE 'vector'
    END,
    ' (' || nullif(array_to_string(reasons, '; '), '') || ')',
    CASE WHEN is_chosen THEN ', model choice' END
);
COMMENT ON FUNCTION sag.describe_mode(boolean, boolean, text[], boolean) IS
'The column mode: what events are searched by, in brackets what could not be had, and whether a '
'model made the final choice.';
