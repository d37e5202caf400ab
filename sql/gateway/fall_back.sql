CREATE OR REPLACE FUNCTION sag.fall_back(
    consequence text, is_strict boolean, state text, reason text, detail text, hint text
)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    -- An option of RAISE cannot be left out at run time, and an empty one would be shown.
    hint text := coalesce(
        nullif(fall_back.hint, ''), 'SELECT sag.gateway_status() says how the gateway is.'
    );
    detail text := rtrim(coalesce(fall_back.detail, ''), E'. \n');
BEGIN
    IF is_strict THEN
        RAISE EXCEPTION USING
            ERRCODE = state,
            MESSAGE = reason,
            DETAIL = concat_ws('. ', nullif(detail, ''), 'The option strict allows no fallback.'),
            HINT = hint;
    ELSIF detail <> '' THEN
        RAISE WARNING USING
            ERRCODE = state, MESSAGE = format('%s: %s', consequence, reason), DETAIL = detail,
            HINT = hint;
    ELSE
        RAISE WARNING USING
            ERRCODE = state, MESSAGE = format('%s: %s', consequence, reason), HINT = hint;
    END IF;
END
$$;
COMMENT ON FUNCTION sag.fall_back(text, boolean, text, text, text, text) IS
'A warning that says what a stage does instead and why; an error where the call is strict.';
