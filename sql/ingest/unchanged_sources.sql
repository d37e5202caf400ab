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
    INNER JOIN sag.document AS d
        ON d.collection_id = target AND d.source = g.source AND d.content_hash = g.content_hash;
END
$$;
COMMENT ON FUNCTION sag.unchanged_sources(text, text[], bytea[]) IS
'Those of the given sources whose content is in the collection already, by hash.';
