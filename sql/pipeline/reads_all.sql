CREATE OR REPLACE FUNCTION sag.reads_all(
    target bigint, event_total bigint, filter jsonpath, row_limit integer
) RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    matching bigint := event_total;
    everything double precision;
    worthwhile double precision;
BEGIN
    SELECT greatest(c.reltuples, event_total) INTO everything
    FROM pg_class AS c WHERE c.oid = 'sag.event'::regclass;
    -- An index scan meets row_limit * everything / matching vectors before it has row_limit of the
    -- wanted ones; reading all meets matching. They are equal at the root.
    worthwhile := greatest(1000, sqrt(row_limit * everything));
    IF filter IS NOT NULL AND matching > worthwhile THEN
        SELECT count(*) INTO matching FROM (
            SELECT FROM sag.document AS d
            INNER JOIN sag.event AS e
                ON e.collection_id = target AND e.document_id = d.document_id
            WHERE d.collection_id = target AND d.metadata @@ reads_all.filter
            LIMIT worthwhile::bigint + 1
        ) AS counted;
    END IF;
    RETURN matching <= worthwhile;
END
$$;
COMMENT ON FUNCTION sag.reads_all(bigint, bigint, jsonpath, integer) IS
'Whether reading all events of a collection (that pass a filter) beats a scan of the vector index, '
'which for few among many returns too little and too late.';
