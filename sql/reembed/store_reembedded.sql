CREATE OR REPLACE FUNCTION sag.store_reembedded(
    collection_id bigint, kind text, row_ids bigint[], vectors halfvec[]
) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    only_missing boolean;
    stored integer;
BEGIN
    -- As sag.lock_collection(), but the collection may be gone.
    PERFORM FROM sag.collection AS c
    WHERE c.collection_id = store_reembedded.collection_id FOR KEY SHARE;
    PERFORM FROM sag.collection_statistic AS s
    WHERE s.collection_id = store_reembedded.collection_id FOR UPDATE;
    PERFORM sag.require_reembedding();
    only_missing := sag.fills_missing();
    EXECUTE format(
        'UPDATE sag.%1$I AS x SET %2$I = g.vector '
        'FROM unnest($2, $3) AS g (row_id, vector) '
        -- The array bounds what is read, whatever the planner takes the new column to hold.
        'WHERE x.collection_id = $1 AND x.%3$I = ANY($2) AND x.%3$I = g.row_id '
        'AND x.%2$I IS NULL '
        -- A vector of zeros has no direction: its cosine is no number.
        'AND l2_norm(g.vector) > 0',
        store_reembedded.kind,
        CASE WHEN only_missing THEN 'embedding' ELSE 'next_embedding' END,
        store_reembedded.kind || '_id'
    ) USING store_reembedded.collection_id, store_reembedded.row_ids, store_reembedded.vectors;
    GET DIAGNOSTICS stored = ROW_COUNT;
    IF store_reembedded.kind = 'event' THEN
        UPDATE sag.collection_statistic AS s
        SET embedding_total = s.embedding_total + CASE WHEN only_missing THEN stored ELSE 0 END,
            next_embedding_total
            = s.next_embedding_total + CASE WHEN only_missing THEN 0 ELSE stored END
        WHERE s.collection_id = store_reembedded.collection_id;
    END IF;
    DELETE FROM sag.reembed_task AS t
    WHERE t.collection_id = store_reembedded.collection_id AND t.kind = store_reembedded.kind
        AND t.row_id = ANY(store_reembedded.row_ids);
    RETURN stored;
END
$$;
COMMENT ON FUNCTION sag.store_reembedded(bigint, text, bigint[], halfvec[]) IS
'Takes the vectors of a batch of sag.reembed_batch(), NULL where there is none, and strikes its '
'rows off the list; those that went meanwhile are passed over. Returns how many were stored.';
