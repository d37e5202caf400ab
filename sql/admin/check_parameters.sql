CREATE OR REPLACE FUNCTION sag.check_parameters(options jsonb) RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path FROM CURRENT
AS $$
DECLARE
    option record;
    known sag.parameter%ROWTYPE;
    fits boolean;
BEGIN
    IF options IS NULL OR options = '{}' THEN
        RETURN;
    END IF;
    IF jsonb_typeof(options) <> 'object' THEN
        RAISE EXCEPTION 'options are a JSON %', jsonb_typeof(options)
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give an object, such as {"hops": 2}.';
    END IF;
    FOR option IN SELECT o.key, o.value FROM jsonb_each(options) AS o LOOP
        SELECT * INTO known FROM sag.parameter AS p WHERE p.name = option.key;
        IF known.name IS NULL THEN
            RAISE EXCEPTION 'parameter % does not exist', quote_literal(left(option.key, 100))
            USING ERRCODE = 'undefined_parameter',
            DETAIL = (SELECT 'Parameters are: ' || string_agg(p.name, ', ' ORDER BY p.name) || '.'
                FROM sag.parameter AS p),
            HINT = format('The closest is %L. SELECT * FROM sag.parameter explains them.', (
                SELECT p.name FROM sag.parameter AS p
                ORDER BY p.name <-> option.key, p.name LIMIT 1
            ));
        END IF;
        BEGIN
            fits := CASE known.type
                WHEN 'integer' THEN jsonb_typeof(option.value) = 'number'
                    AND (option.value #>> '{}')::double precision
                    BETWEEN known.minimum AND known.maximum
                    AND (option.value #>> '{}')::numeric % 1 = 0
                WHEN 'real' THEN jsonb_typeof(option.value) = 'number'
                    AND (option.value #>> '{}')::double precision
                    BETWEEN known.minimum AND known.maximum
                WHEN 'boolean' THEN jsonb_typeof(option.value) = 'boolean'
                ELSE jsonb_typeof(option.value) = 'string'
                    AND option.value #>> '{}' = ANY(known.choices)
            END;
        EXCEPTION WHEN numeric_value_out_of_range THEN
            -- JSON has numbers that no double precision can be, such as 1e-400.
            fits := FALSE;
        END;
        IF NOT fits THEN
            RAISE EXCEPTION 'parameter % cannot be %', known.name, left(option.value::text, 100)
            USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('%s: %s.', known.name, known.meaning),
            HINT = CASE known.type
                WHEN 'integer'
                THEN format('Give a whole number from %s to %s.', known.minimum, known.maximum)
                WHEN 'real'
                THEN format('Give a number from %s to %s.', known.minimum, known.maximum)
                WHEN 'boolean' THEN 'Give true or false.'
                ELSE format('Give one of: %s.', array_to_string(known.choices, ', '))
            END;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION sag.check_parameters(jsonb) IS
'An error for the first option that is unknown or out of range; says what would be right.';
