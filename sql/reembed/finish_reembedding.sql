CREATE OR REPLACE FUNCTION sag.finish_reembedding(patience_ms integer DEFAULT 200)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    under_way sag.reembedding%ROWTYPE;
    holder text;
    remark text;
    next_remark text;
BEGIN
    PERFORM sag.require_maintainer();
    LOCK TABLE sag.embedding_space IN SHARE ROW EXCLUSIVE MODE;
    PERFORM sag.lock_collections();
    PERFORM sag.require_reembedding();
    SELECT * INTO under_way FROM sag.reembedding;
    IF under_way.row_total IS NULL
        OR EXISTS (SELECT FROM sag.reembed_task)
        OR EXISTS (SELECT FROM sag.reembedding_indexes())
    THEN
        RETURN FALSE;
    END IF;
    IF sag.fills_missing() THEN
        DELETE FROM sag.reembedding;
        RETURN TRUE;
    END IF;
    PERFORM sag.lock_vectors(finish_reembedding.patience_ms);
    FOREACH holder IN ARRAY ARRAY['event', 'chunk', 'entity'] LOOP
        SELECT
            max(col_description(a.attrelid, a.attnum)) FILTER (WHERE a.attname = 'embedding'),
            max(col_description(a.attrelid, a.attnum)) FILTER (WHERE a.attname = 'next_embedding')
        INTO remark, next_remark
        FROM pg_attribute AS a
        WHERE a.attrelid = format('sag.%I', holder)::regclass AND a.attnum > 0;
        EXECUTE format('ALTER TABLE sag.%I DROP COLUMN embedding', holder);
        EXECUTE format('ALTER TABLE sag.%I RENAME COLUMN next_embedding TO embedding', holder);
        EXECUTE format('COMMENT ON COLUMN sag.%I.embedding IS %L', holder, remark);
        EXECUTE format('ALTER TABLE sag.%I ADD COLUMN next_embedding halfvec', holder);
        EXECUTE format('COMMENT ON COLUMN sag.%I.next_embedding IS %L', holder, next_remark);
        EXECUTE format(
            'ALTER INDEX sag.%I RENAME TO %I', holder || '_next_embedding', holder || '_embedding'
        );
        PERFORM sag.describe_vector_index(holder);
    END LOOP;
    UPDATE sag.collection_statistic AS s
    SET embedding_total = s.next_embedding_total, next_embedding_total = 0;
    DELETE FROM sag.embedding_space;
    INSERT INTO sag.embedding_space (model, dimensions)
    VALUES (under_way.model, under_way.dimensions);
    DELETE FROM sag.reembedding;
    RETURN TRUE;
END
$$;
COMMENT ON FUNCTION sag.finish_reembedding(integer) IS
'Puts the next vectors in the place of those in use, at a stroke; false where rows or indexes are '
'still missing. May fail with lock_not_available, see sag.lock_vectors(): try again.';
