CREATE OR REPLACE FUNCTION sag.unchanged_sources(
    collection text, sources text[], content_hashes bytea[]
) RETURNS TABLE (source text)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    target bigint := sag.collection_key(unchanged_sources.collection);
BEGIN
    RETURN QUERY
    SELECT d.source
    FROM unnest(unchanged_sources.sources, unchanged_sources.content_hashes)
        AS g (source, content_hash)
    CROSS JOIN LATERAL (
        SELECT o.source FROM sag.document AS o
        WHERE o.collection_id = target AND o.source = g.source
            AND o.content_hash = g.content_hash
        -- One by one, whatever the planner thinks of a table that grew since ANALYZE.
        OFFSET 0
    ) AS d;
END
$$;
COMMENT ON FUNCTION sag.unchanged_sources(text, text[], bytea[]) IS
'Those of the given sources whose content is in the collection already, by hash.';
