CREATE OR REPLACE FUNCTION sag.entity_types() RETURNS TABLE (name text, description text)
LANGUAGE plpgsql STABLE PARALLEL SAFE ROWS 11
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT t.name, t.description FROM sag.entity_type AS t ORDER BY t.name COLLATE "C";
END
$$;
COMMENT ON FUNCTION sag.entity_types() IS
'The types that a language model may give entities, as it is told of them.';
