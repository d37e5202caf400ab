CREATE OR REPLACE FUNCTION sag.vector_storage(dimensions integer) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
-- Inline vectors spare a detoast at each distance, as long as two rows fit on a page.
RETURN CASE WHEN dimensions <= 1700 THEN 'PLAIN' ELSE 'EXTERNAL' END;
COMMENT ON FUNCTION sag.vector_storage(integer) IS
'How a column of vectors of that length is stored.';
