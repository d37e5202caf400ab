CREATE OR REPLACE FUNCTION sag.misspelt_names(
    target bigint, configuration regconfig, question text, known_names text[]
)
RETURNS TABLE (name text)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 5
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH token AS MATERIALIZED (
        SELECT t.word, t.no
        FROM unnest(
            (sag.fold_tokens(left(misspelt_names.question, 10000)))[1:64]
        ) WITH ORDINALITY AS t (word, no)
    ),
    -- A word that no event has is a name unknown here, or one misspelt.
    unknown AS MATERIALIZED (
        SELECT t.no, t.word
        FROM token AS t
        CROSS JOIN LATERAL unnest(
            tsvector_to_array(sag.text_vector(misspelt_names.configuration, t.word))
        ) AS x (lexeme)
        WHERE char_length(t.word) > 4 AND t.word !~ '[0-9\x1F]'
            AND NOT EXISTS (
                SELECT FROM unnest(misspelt_names.known_names) AS k (name)
                WHERE t.word = ANY(string_to_array(k.name, ' '))
            )
            AND NOT EXISTS (
                SELECT FROM sag.event AS e
                WHERE e.collection_id = misspelt_names.target
                    AND e.lexemes @@ sag.lexeme_query(x.lexeme)
            )
    )
    SELECT u.word FROM unknown AS u
    UNION
    SELECT before.word || ' ' || u.word
    FROM unknown AS u INNER JOIN token AS before ON before.no = u.no - 1
    UNION
    SELECT u.word || ' ' || after.word
    FROM unknown AS u INNER JOIN token AS after ON after.no = u.no + 1
    LIMIT 12;
END
$$;
COMMENT ON FUNCTION sag.misspelt_names(bigint, regconfig, text, text[]) IS
'Words of a question that no event has, alone and with a neighbour: names to be linked by '
'trigrams.';
