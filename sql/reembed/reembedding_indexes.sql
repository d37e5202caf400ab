CREATE OR REPLACE FUNCTION sag.reembedding_indexes() RETURNS TABLE (holder text, statement text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    IF sag.fills_missing() THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT
        t.holder,
        CASE
            WHEN i.indexrelid IS NULL THEN format(
                'CREATE INDEX CONCURRENTLY IF NOT EXISTS %I ON sag.%I '
                'USING hnsw (next_embedding %s.halfvec_cosine_ops)',
                t.holder || '_next_embedding', t.holder, (
                    SELECT o.opcnamespace::regnamespace
                    FROM pg_opclass AS o
                    INNER JOIN pg_am AS m ON m.oid = o.opcmethod
                    WHERE o.opcname = 'halfvec_cosine_ops' AND m.amname = 'hnsw'
                )
            )
            -- What a killed run left half built.
            ELSE format(
                'DROP INDEX CONCURRENTLY IF EXISTS sag.%I', t.holder || '_next_embedding'
            )
        END
    FROM unnest(ARRAY['event', 'chunk', 'entity']) WITH ORDINALITY AS t (holder, no)
    LEFT JOIN pg_index AS i
        ON i.indexrelid = to_regclass(format('sag.%I', t.holder || '_next_embedding'))
    WHERE i.indexrelid IS NULL OR NOT i.indisvalid
    ORDER BY t.no;
END
$$;
COMMENT ON FUNCTION sag.reembedding_indexes() IS
'The statements by which the next vectors come to their indexes, as long as some are missing. No '
'function can run them: they keep nobody off the tables, and so need transactions of their own.';
