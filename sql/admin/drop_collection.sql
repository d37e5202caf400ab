CREATE OR REPLACE FUNCTION sag.drop_collection(name text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    target bigint := sag.collection_key(drop_collection.name);
    holder text;
BEGIN
    IF drop_collection.name = 'default' THEN
        RAISE EXCEPTION 'the collection "default" always exists'
        USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'sag.delete_documents() empties it.';
    END IF;
    -- Writers share this lock, so from here on there are none.
    PERFORM FROM sag.collection AS c WHERE c.collection_id = target FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM sag.collection_key(drop_collection.name);
    END IF;
    -- Workers do not share it when they take, release or settle a task. They come from the task to
    -- its text, and so does this.
    PERFORM FROM sag.ingest_job AS j WHERE j.collection_id = target FOR UPDATE;
    PERFORM FROM sag.ingest_task AS t WHERE t.collection_id = target FOR UPDATE;
    FOREACH holder IN ARRAY ARRAY[
        'reembed_task', 'chunk_failure', 'ingest_piece', 'ingest_usage', 'ingest_task',
        'ingest_job', 'event_entity', 'event_alias', 'entity_alias', 'event', 'chunk', 'document',
        'entity', 'collection_statistic', 'collection'
    ] LOOP
        EXECUTE format('DELETE FROM sag.%I WHERE collection_id = $1', holder) USING target;
    END LOOP;
END
$$;
COMMENT ON FUNCTION sag.drop_collection(text) IS 'Deletes a collection with all that it holds.';
