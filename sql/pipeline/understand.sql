CREATE OR REPLACE FUNCTION sag.understand(
    target bigint,
    configuration regconfig,
    question text,
    event_limit bigint,
    entities text[] DEFAULT NULL,
    entity_embeddings halfvec[] DEFAULT NULL
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
        SELECT DISTINCT ON (sag.normalize_entity(g.name)) g.name, g.embedding
        FROM unnest(understand.entities, understand.entity_embeddings) WITH ORDINALITY
            AS g (name, embedding, no)
        -- Longer ones cannot be in sag.entity.
        WHERE char_length(g.name) <= 1000 AND btrim(g.name) <> ''
        ORDER BY sag.normalize_entity(g.name), g.no
    )
    SELECT r.name, 'question', NULL::halfvec
    FROM read AS r
    WHERE r.name NOT IN (SELECT sag.normalize_entity(g.name) FROM given AS g)
    UNION ALL
    SELECT g.name, 'caller', g.embedding
    FROM given AS g
    UNION ALL
    SELECT m.name, 'misspelt', NULL
    FROM sag.misspelt_names(
        understand.target, understand.configuration, understand.question,
        ARRAY(SELECT r.name FROM read AS r UNION ALL SELECT sag.fold_text(g.name) FROM given AS g)
    ) AS m;
END
$$;
COMMENT ON FUNCTION sag.understand(bigint, regconfig, text, bigint, text[], halfvec[]) IS
'U_q: the entities of the question as SQL reads them, those that the caller gives, and words that '
'may be misspelt names.';
