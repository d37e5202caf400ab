CREATE OR REPLACE FUNCTION public.sag_delete(source text, collection text DEFAULT 'default')
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    -- It holds the collection from here on, so that no worker merges what is in the queue.
    PERFORM FROM sag.delete_documents(sag_delete.collection, ARRAY[sag_delete.source]);
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION public.sag_delete(text, text) IS
'Deletes a document with all that was made of it, at once, and takes it out of the queue. Returns '
'whether there was one. No document of the collection is merged until the transaction ends.';
