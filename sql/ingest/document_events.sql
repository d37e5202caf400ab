CREATE OR REPLACE FUNCTION sag.document_events(target bigint, document_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
BEGIN
    -- One document after the other, which OFFSET 0 keeps the planner from changing: of a collection
    -- that ANALYZE has not seen yet it expects a few rows, and would read them all for a join.
    RETURN ARRAY(
        SELECT e.event_id
        FROM unnest(document_events.document_ids) AS d (document_id)
        CROSS JOIN LATERAL (
            SELECT x.event_id FROM sag.event AS x
            WHERE x.collection_id = target AND x.document_id = d.document_id
            OFFSET 0
        ) AS e
    );
END
$$;
COMMENT ON FUNCTION sag.document_events(bigint, bigint[]) IS
'The events of documents, found in time proportional to their number.';
