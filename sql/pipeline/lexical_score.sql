CREATE OR REPLACE FUNCTION sag.lexical_score(
    lexemes tsvector, lexeme_count integer, queries tsquery[], weights double precision[],
    average_length double precision
) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    total double precision := 0;
    no integer := 0;
    query tsquery;
BEGIN
    -- A question may have no lexeme at all.
    FOREACH query IN ARRAY coalesce(queries, '{}') LOOP
        no := no + 1;
        IF lexemes @@ query THEN
            total := total + weights[no];
        END IF;
    END LOOP;
    RETURN total / (0.7 + 0.3 * lexeme_count / greatest(average_length, 1));
END
$$;
COMMENT ON FUNCTION sag.lexical_score(
    tsvector, integer, tsquery[], double precision[], double precision
) IS
'Sum of the weights (idf) of the question''s lexemes that a text has, damped by its length.';
