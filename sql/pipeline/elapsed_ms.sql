CREATE OR REPLACE FUNCTION sag.elapsed_ms(started timestamptz) RETURNS double precision
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN extract(EPOCH FROM clock_timestamp() - started) * 1000;
COMMENT ON FUNCTION sag.elapsed_ms(timestamptz) IS 'Milliseconds since a point in time.';
