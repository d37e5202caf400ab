CREATE OR REPLACE FUNCTION sag.link_entities(
    target bigint,
    names text[],
    origins text[],
    embeddings halfvec[],
    entity_similarity double precision DEFAULT 0.9,
    trigram_similarity double precision DEFAULT 0.5,
    link_limit integer DEFAULT 5
)
RETURNS TABLE (
    name text, entity_id bigint, method text, similarity double precision, event_count integer
)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 5
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT
            q.no, q.name, q.origin, q.embedding, sag.normalize_entity(q.name) AS normalized_name
        FROM unnest(link_entities.names, link_entities.origins, link_entities.embeddings)
            WITH ORDINALITY AS q (name, origin, embedding, no)
    ),
    exact AS MATERIALIZED (
        SELECT a.no, n.entity_id, 'exact' AS method, 1::double precision AS similarity,
            n.event_count, n.embedding
        FROM asked AS a
        INNER JOIN sag.entity AS n
            ON n.collection_id = link_entities.target AND n.normalized_name = a.normalized_name
        WHERE a.origin <> 'misspelt'
    ),
    alias AS MATERIALIZED (
        SELECT a.no, n.entity_id, 'alias' AS method, 1::double precision AS similarity,
            n.event_count, n.embedding
        FROM asked AS a
        INNER JOIN sag.entity_alias AS s
            ON s.collection_id = link_entities.target AND s.normalized_name = a.normalized_name
        INNER JOIN sag.entity AS n
            ON n.collection_id = link_entities.target AND n.entity_id = s.entity_id
        WHERE a.origin <> 'misspelt'
    ),
    -- Neighbours of the vector that came with the name, else of the entity that the name is.
    probe AS MATERIALIZED (
        SELECT a.no, a.embedding FROM asked AS a WHERE a.embedding IS NOT NULL
        UNION ALL
        SELECT x.no, x.embedding
        FROM exact AS x
        INNER JOIN asked AS a ON a.no = x.no
        WHERE a.embedding IS NULL AND x.embedding IS NOT NULL
    ),
    neighbour AS MATERIALIZED (
        SELECT p.no, v.entity_id, 'vector' AS method, 1 - v.distance / 2 AS similarity,
            v.event_count
        FROM probe AS p
        CROSS JOIN LATERAL (
            SELECT n.entity_id, n.event_count, n.embedding <=> p.embedding AS distance
            FROM sag.entity AS n
            WHERE n.collection_id = link_entities.target AND n.embedding IS NOT NULL
            ORDER BY n.embedding <=> p.embedding
            LIMIT link_entities.link_limit
        ) AS v
        WHERE 1 - v.distance / 2 >= link_entities.entity_similarity
    ),
    unlinked AS MATERIALIZED (
        SELECT a.* FROM asked AS a
        WHERE a.origin IN ('caller', 'model', 'misspelt') AND char_length(a.normalized_name) > 3
            AND a.no NOT IN (
                SELECT x.no FROM exact AS x
                UNION ALL SELECT s.no FROM alias AS s
                UNION ALL SELECT v.no FROM neighbour AS v
            )
    ),
    -- "Lincoln" for "Abraham Lincoln".
    part AS MATERIALIZED (
        SELECT a.no, w.entity_id, 'words' AS method, w.similarity, w.event_count
        FROM unlinked AS a
        CROSS JOIN LATERAL (
            SELECT
                n.entity_id, n.event_count,
                similarity(n.normalized_name, a.normalized_name)::double precision AS similarity
            FROM sag.entity AS n
            WHERE n.collection_id = link_entities.target
                AND n.lexemes @@ (
                    SELECT string_agg(sag.lexeme_query(l.lexeme)::text, ' & ')::tsquery
                    FROM unnest(tsvector_to_array(sag.text_vector('pg_catalog.simple', a.name)))
                        AS l (lexeme)
                )
            ORDER BY 3 DESC, n.event_count DESC, n.entity_id ASC
            LIMIT link_entities.link_limit
        ) AS w
        WHERE a.origin IN ('caller', 'model')
    ),
    near AS MATERIALIZED (
        SELECT a.no, t.entity_id, 'trigram' AS method, t.similarity, t.event_count
        FROM unlinked AS a
        CROSS JOIN LATERAL (
            SELECT
                n.entity_id, n.event_count,
                similarity(n.normalized_name, a.normalized_name)::double precision AS similarity
            FROM sag.entity AS n
            WHERE n.collection_id = link_entities.target
                AND n.normalized_name % a.normalized_name
            ORDER BY 3 DESC, n.event_count DESC, n.entity_id ASC
            LIMIT link_entities.link_limit
        ) AS t
        WHERE t.similarity >= link_entities.trigram_similarity
            AND a.no NOT IN (SELECT p.no FROM part AS p)
    )
    SELECT DISTINCT ON (l.entity_id) a.name, l.entity_id, l.method, l.similarity, l.event_count
    FROM (
        SELECT x.no, x.entity_id, x.method, x.similarity, x.event_count, 1 AS precedence
        FROM exact AS x
        UNION ALL
        SELECT s.no, s.entity_id, s.method, s.similarity, s.event_count, 2 FROM alias AS s
        UNION ALL
        SELECT v.*, 3 FROM neighbour AS v
        UNION ALL
        SELECT p.*, 4 FROM part AS p
        UNION ALL
        SELECT t.*, 5 FROM near AS t
    ) AS l
    INNER JOIN asked AS a ON a.no = l.no
    WHERE l.event_count > 0
    ORDER BY l.entity_id, l.precedence, l.similarity DESC, a.no;
END
$$;
COMMENT ON FUNCTION sag.link_entities(
    bigint, text[], text[], halfvec[], double precision, double precision, integer
) IS
'Û_q: entities of the collection for the names of the question, by exact normalised name, alias, '
'vector, words of a longer name, or trigrams; each row says how.';
