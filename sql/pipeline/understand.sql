-- Its arguments were fewer. Asked for first, because IF EXISTS gives a notice at each migrate.
DO $$
BEGIN
    IF to_regprocedure(
        'sag.understand(bigint, regconfig, text, bigint, text[], halfvec[])'
    ) IS NOT NULL THEN
        DROP FUNCTION sag.understand(bigint, regconfig, text, bigint, text[], halfvec[]);
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION sag.understand(
    target bigint,
    configuration regconfig,
    question text,
    event_limit bigint,
    entities text[] DEFAULT NULL,
    entity_embeddings halfvec[] DEFAULT NULL,
    model_entities text[] DEFAULT NULL,
    model_entity_embeddings halfvec[] DEFAULT NULL
)
RETURNS TABLE (name text, origin text, embedding halfvec)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 5
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH read AS MATERIALIZED (
        SELECT q.name
        FROM sag.question_entities(understand.target, understand.question, understand.event_limit)
            AS q
    ),
    given AS MATERIALIZED (
        SELECT DISTINCT ON (sag.normalize_entity(g.name)) g.name, g.embedding, g.origin
        FROM (
            SELECT c.name, c.embedding, c.no, 'caller' AS origin
            FROM unnest(understand.entities, understand.entity_embeddings) WITH ORDINALITY
                AS c (name, embedding, no)
            UNION ALL
            SELECT m.name, m.embedding, m.no, 'model'
            FROM unnest(understand.model_entities, understand.model_entity_embeddings)
                WITH ORDINALITY AS m (name, embedding, no)
        ) AS g
        -- Longer ones cannot be in sag.entity.
        WHERE char_length(g.name) <= 1000 AND btrim(g.name) <> ''
        ORDER BY sag.normalize_entity(g.name), g.origin, g.no
    )
    SELECT r.name, 'question', NULL::halfvec
    FROM read AS r
    WHERE r.name NOT IN (SELECT sag.normalize_entity(g.name) FROM given AS g)
    UNION ALL
    SELECT g.name, g.origin, g.embedding
    FROM given AS g
    UNION ALL
    SELECT m.name, 'misspelt', NULL
    FROM sag.misspelt_names(
        understand.target, understand.configuration, understand.question,
        ARRAY(SELECT r.name FROM read AS r UNION ALL SELECT sag.fold_text(g.name) FROM given AS g)
    ) AS m;
END
$$;
COMMENT ON FUNCTION sag.understand(
    bigint, regconfig, text, bigint, text[], halfvec[], text[], halfvec[]
) IS
'U_q: the entities of the question as SQL reads them, those that the caller and the model give, '
'and words that may be misspelt names.';
